"""Engines on a virtual clock, and what their /metrics say at any moment: made to be judged where the truth is known.

A life is a list of stretches. Counters grow with what really happens; gauges are refreshed only when a step reports, so a long
step (a compile pause, one unchunked prefill) and a hang look alike until time tells. Nothing here knows how it will be judged.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from diag.health.reads import Read
from diag.parsers.prometheus import Sample

Kind = Literal["idle", "decode", "chunked", "silent", "hang", "hidden-hang", "queued", "down", "asleep"]
"""silent: one long healthy step that moves no metric. hidden-hang: a hang behind gauges that still say 0."""
EPOCH_S = 1_790_000_000.0
CAPACITY = 262_144
@dataclass(frozen=True)
class Stretch:
    """`seconds` of one kind with so many requests; `kv` is the share of the cache that is held at its end."""

    kind: Kind
    seconds: float
    running: int = 0
    waiting: int = 0
    kv: float = 0.0
    fresh: bool = False
    """The process was started anew before it."""
    stale: bool = False
    """A long step that began before the gauges could tell: they still say what was before."""
    ends: bool = True
    """The requests of a decode end with it; else they go on in the next stretch."""


@dataclass
class Now:
    """What is true at one moment, as far as metrics can tell it."""

    running: int = 0
    waiting: int = 0
    kv: float = 0.0
    steps: int = 0
    outputs: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    chunked: int = 0
    admitted: int = 0
    finished: int = 0
    first_tokens: int = 0
    idle_s: float = 0.0
    asleep: bool = False
    born: float = 0.0
    open: int = 0
    """Requests that clients wait for, whatever the gauges say."""
    up: bool = True


@dataclass
class Life:
    """Stretches one after the other from second 0; `at` tells the moment t, `truth` the stretch it lies in and since when."""

    stretches: Sequence[Stretch]
    start: float = 0.0
    busy_before: int = 0
    _marks: list[tuple[float, Now, Stretch]] = field(default_factory=list)

    def __post_init__(self) -> None:
        now = Now(tokens_in=self.busy_before * 900, tokens_out=self.busy_before * 300, outputs=self.busy_before * 300,
                  steps=self.busy_before * 310, chunked=self.busy_before * 1200, admitted=self.busy_before, finished=self.busy_before,
                  first_tokens=self.busy_before, idle_s=self.busy_before * 2.0, born=self.start - 3600.0)
        clock = self.start
        for stretch in self.stretches:
            if stretch.fresh:
                now = Now(born=clock)
            now = _begin(now, stretch)
            self._marks.append((clock, now, stretch))
            clock += stretch.seconds
            now = _end(_during(now, stretch, stretch.seconds), stretch)
        self.seconds = clock - self.start

    def truth(self, t: float) -> tuple[Stretch, float]:
        """The stretch of moment t and when it began."""
        began, _, stretch = self._marks[self._mark(t)]
        return stretch, began

    def at(self, t: float) -> Now:
        """What is counted at moment t."""
        began, now, stretch = self._marks[self._mark(t)]
        return _during(now, stretch, min(t - began, stretch.seconds))

    def _mark(self, t: float) -> int:
        return max(0, bisect_right([mark[0] for mark in self._marks], t) - 1)


def _begin(now: Now, stretch: Stretch) -> Now:
    """What a stretch changes at once: gauges follow unless the step that would report them never ends."""
    if stretch.kind == "down":
        return replace(now, up=False)
    now = replace(now, open=stretch.running + stretch.waiting)
    if stretch.kind == "hidden-hang" or stretch.stale:
        return now
    more = max(0, stretch.running - now.running)
    return replace(now, running=stretch.running, waiting=stretch.waiting, admitted=now.admitted + more, up=True,
                   asleep=stretch.kind == "asleep", kv=now.kv if stretch.running else 0.0)


def _during(now: Now, stretch: Stretch, seconds: float) -> Now:
    """Growth over `seconds` of a stretch."""
    share = seconds / stretch.seconds if stretch.seconds else 1.0
    if stretch.kind == "decode":
        steps = int(seconds * 20)
        first = now.first_tokens + (now.admitted - now.finished - (now.first_tokens - now.finished) if seconds > 0.5 else 0)
        return replace(now, steps=now.steps + steps, outputs=now.outputs + steps, tokens_out=now.tokens_out + steps * stretch.running,
                       chunked=now.chunked + steps * stretch.running, first_tokens=first, kv=now.kv + (stretch.kv - now.kv) * share)
    if stretch.kind == "chunked":
        steps = int(seconds / 2)
        return replace(now, steps=now.steps + steps, chunked=now.chunked + 512 * steps, kv=now.kv + (stretch.kv - now.kv) * share)
    if stretch.kind == "idle":
        return replace(now, idle_s=now.idle_s + seconds)
    return now


def _end(now: Now, stretch: Stretch) -> Now:
    if stretch.kind == "chunked":
        return replace(now, outputs=now.outputs + 1, tokens_in=now.tokens_in + int(stretch.kv * CAPACITY), first_tokens=now.admitted)
    if stretch.kind == "silent" and stretch.running:
        return replace(now, running=stretch.running, admitted=max(now.admitted, now.finished + stretch.running), steps=now.steps + 1, outputs=now.outputs + 1, tokens_in=now.tokens_in + 700,
                       chunked=now.chunked + 700, first_tokens=max(now.admitted, now.finished + stretch.running))
    if stretch.kind == "decode" and stretch.ends:
        return replace(now, finished=now.admitted, running=0, waiting=0, kv=0.0)
    return now


Metrics = Mapping[str, float]
"""Sample name with labels -> value."""


def vllm(now: Now) -> Metrics:
    """vLLM 0.32 with one API server."""
    label = '{engine="0",model_name="m"}'
    return {
        f"vllm:num_requests_running{label}": now.running, f"vllm:num_requests_waiting{label}": now.waiting,
        f"vllm:kv_cache_usage_perc{label}": now.kv, f"vllm:iteration_tokens_total_count{label}": now.outputs,
        f"vllm:prompt_tokens_total{label}": now.tokens_in, f"vllm:generation_tokens_total{label}": now.tokens_out,
        f"vllm:prefix_cache_queries_total{label}": now.admitted * 900, f"vllm:estimated_flops_per_gpu_total{label}": 0.0,
        f"vllm:time_to_first_token_seconds_count{label}": now.first_tokens,
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"}': now.finished,
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"}': 0.0 if now.asleep else 1.0,
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"}': 1.0 if now.asleep else 0.0,
        f'vllm:cache_config_info{{block_size="128",engine="0",num_gpu_blocks="{CAPACITY // 128}"}}': 1.0,
        "process_start_time_seconds": EPOCH_S + now.born, "process_cpu_seconds_total": 7.0 + now.steps / 100,
    }


def vllm_many(now: Now) -> Metrics:
    """vLLM with several API servers: no start time, no _created."""
    return {name: value for name, value in vllm(now).items() if not name.startswith("process_")}


def vllm_mfu(now: Now) -> Metrics:
    """vLLM with --enable-mfu-metrics."""
    return {**vllm(now), 'vllm:estimated_flops_per_gpu_total{engine="0",model_name="m"}': now.steps * 1e12}


SGL = 'engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"'


def sglang(now: Now) -> Metrics:
    """SGLang 0.5.23."""
    return {
        f"sglang:realtime_tokens_total{{{SGL},mode=\"prefill_compute\"}}": now.chunked,
        f"sglang:realtime_tokens_total{{{SGL},mode=\"decode\"}}": now.tokens_out,
        f"sglang:scheduler_idle_seconds_total{{{SGL}}}": now.idle_s,
        'sglang:http_requests_active{endpoint="/v1/chat/completions",method="POST"}': now.open,
        **sglang_old(now),
    }


def sglang_old(now: Now) -> Metrics:
    """SGLang 0.5.6: no counter per chunk."""
    return {
        f"sglang:num_running_reqs{{{SGL}}}": now.running, f"sglang:num_queue_reqs{{{SGL}}}": now.waiting,
        f"sglang:token_usage{{{SGL}}}": now.kv, f"sglang:num_used_tokens{{{SGL}}}": int(now.kv * CAPACITY),
        'sglang:prompt_tokens_total{engine_type="unified",model_name="m"}': now.finished * 900,
        'sglang:generation_tokens_total{engine_type="unified",model_name="m"}': now.finished * 300,
        'sglang:inter_token_latency_seconds_count{engine_type="unified",model_name="m"}': now.tokens_out,
    }


def tgi(now: Now) -> Metrics:
    """TGI router v3."""
    return {
        "tgi_batch_current_size": now.running, "tgi_queue_size": now.waiting, 'tgi_batch_inference_count{method="decode"}': now.steps,
        'tgi_batch_inference_count{method="prefill"}': now.admitted, 'tgi_batch_inference_success{method="decode"}': now.steps,
        "tgi_request_count": now.admitted + now.waiting, "tgi_request_success": now.finished,
    }


def llamacpp(now: Now) -> Metrics:
    """llama.cpp server."""
    return {
        "llamacpp:requests_processing": now.running, "llamacpp:requests_deferred": now.waiting, "llamacpp:n_decode_total": now.steps,
        "llamacpp:prompt_tokens_total": now.tokens_in, "llamacpp:tokens_predicted_total": now.finished * 300,
    }


def trtllm(now: Now) -> Metrics:
    """TensorRT-LLM on Triton."""
    label = 'model="tensorrt_llm",version="1"'
    return {
        f'nv_trt_llm_request_metrics{{{label},request_type="active"}}': now.running + now.waiting,
        f'nv_trt_llm_request_metrics{{{label},request_type="waiting"}}': now.waiting,
        f'nv_trt_llm_request_metrics{{{label},request_type="max"}}': 512,
        f'nv_trt_llm_general_metrics{{{label},general_type="iteration_counter"}}': now.steps,
        f'nv_trt_llm_kv_cache_block_metrics{{{label},kv_cache_block_type="used"}}': int(now.kv * 6239),
        f"nv_inference_count{{{label}}}": now.finished,
    }


def mindie(now: Now) -> Metrics:
    """MindIE service monitor."""
    label = '{model_name="m"}'
    return {
        f"num_requests_running{label}": now.running, f"num_requests_waiting{label}": now.waiting, f"num_requests_swapped{label}": 0,
        f"npu_cache_usage_perc{label}": now.kv, f"prompt_tokens_total{label}": now.tokens_in, f"generation_tokens_total{label}": now.tokens_out,
        f"request_received_total{label}": now.admitted + now.waiting, f"request_success_total{label}": now.finished,
    }


def dynamo(now: Now) -> Metrics:
    """A worker of Dynamo."""
    label = '{dynamo_component="backend",dynamo_endpoint="generate",dynamo_namespace="dynamo"}'
    part = '{dynamo_component="backend",dynamo_namespace="dynamo"}'
    return {
        f"dynamo_component_inflight_requests{label}": now.running + now.waiting, f"dynamo_component_requests_total{label}": now.finished,
        f"dynamo_component_response_bytes_total{label}": now.tokens_out * 180, f"dynamo_component_gpu_cache_usage_percent{part}": now.kv,
        f"dynamo_component_uptime_seconds{part}": -now.born,
    }


def lmcache(now: Now) -> Metrics:
    """vLLM with LMCache inside."""
    label = '{model_name="m",worker_id="0"}'
    return {**vllm(now), f"lmcache:num_retrieve_requests_total{label}": now.chunked // 4096, f"lmcache:num_store_requests_total{label}": now.finished,
            f"lmcache:num_lookup_requests_total{label}": now.admitted}


ENGINES: Mapping[str, Callable[[Now], Metrics]] = {
    "vllm": vllm, "vllm-many": vllm_many, "vllm-mfu": vllm_mfu, "sglang": sglang, "sglang-old": sglang_old, "tgi": tgi,
    "llamacpp": llamacpp, "trtllm-triton": trtllm, "mindie": mindie, "dynamo": dynamo,
    "lmcache": lmcache,
}


def read(life: Life, engine: Callable[[Now], Metrics], t: float) -> Read:
    """GET /metrics at moment t."""
    now = life.at(t)
    if not now.up:
        return Read("refused", EPOCH_S + t, t, problem="no answer: refused")
    if engine is dynamo:
        now = replace(now, born=now.born - t)
    return Read("answer", EPOCH_S + t, t, 200, tuple(_sample(number, *item) for number, item in enumerate(engine(now).items(), start=1)))


_LABELS: dict[str, tuple[str, dict[str, str]]] = {}


def _sample(line: int, name: str, value: float) -> Sample:
    if name not in _LABELS:
        plain, _, labels = name.partition("{")
        pairs = (pair.partition("=") for pair in labels.rstrip("}").split(",") if pair)
        _LABELS[name] = plain, {key: text.strip('"') for key, _, text in pairs}
    plain, found = _LABELS[name]
    return Sample(line, plain, found, float(value))


def text(metrics: Metrics) -> str:
    """As a server writes it."""
    return "".join(f"{name} {value:g}\n" if value < 1e6 else f"{name} {value!r}\n" for name, value in metrics.items())


def healthy(rng: random.Random, flat_s: float, seconds: float) -> list[Stretch]:
    """A life without a fault: bursts, long decodes, chunked prefills, compile pauses, unchunked prefills up to `flat_s`."""
    found: list[Stretch] = []
    while sum(item.seconds for item in found) < seconds:
        running = rng.choice((1, 1, 2, 4, 12))
        kv = rng.uniform(0.05, 0.95)
        found += rng.choice((
            [Stretch("idle", rng.uniform(5, 300))],
            [Stretch("decode", rng.uniform(2, 400), running, rng.choice((0, 0, 5)), kv)],
            [Stretch("chunked", rng.uniform(20, 900), 1, 0, kv), Stretch("decode", rng.uniform(1, 90), 1, 0, kv)],
            [Stretch("silent", rng.uniform(30, 70), running, 0, kv, stale=True), Stretch("decode", rng.uniform(5, 60), running, 0, kv)],
            [Stretch("decode", rng.uniform(5, 60), running, 0, kv, ends=False), Stretch("silent", rng.uniform(30, 70), running, 0, kv),
             Stretch("decode", rng.uniform(5, 60), running, 0, kv)],
            [Stretch("silent", rng.uniform(30, flat_s), running, 0, kv, stale=rng.random() < 0.3), Stretch("decode", rng.uniform(5, 60), running, 0, kv)],
            [Stretch("decode", rng.uniform(0.5, 3), running, 0, 0.02), Stretch("idle", rng.uniform(1, 20))] * 4,
        ))
    return found
