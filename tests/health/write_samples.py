"""Writes samples/health: per engine family one text of /metrics and three timelines (long prefill, hang, restart).

    python -m tests.health.write_samples

The series and their HELP and TYPE lines are those of the named versions (sources in samples/health/README.md); the numbers come
from the simulated engines of this folder, so everything is marked as reconstructed. vLLM's lines are taken from the recorded text.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.health.simulated import ENGINES, EPOCH_S, Life, Metrics, Now, Stretch, text

SAMPLES = Path(__file__).parents[2] / "samples"
FOLDER = SAMPLES / "health"
URL = "http://10.0.0.8:8000/metrics"
DECODE = Stretch("decode", 60, 2, 0, 0.1, ends=False)
TIMELINES: Mapping[str, tuple[float, tuple[Stretch, ...]]] = {
    "long-prefill": (30.0, (Stretch("idle", 25), Stretch("chunked", 230, 1, 0, 0.35))),
    "hang": (60.0, (DECODE, Stretch("hang", 430, 2, 0, 0.1))),
    "restart": (10.0, (Stretch("decode", 21, 2, 0, 0.1), Stretch("down", 15), Stretch("decode", 14, 1, 0, 0.02, fresh=True))),
}
"""Seconds between reads, and what happens."""
SILENT_PREFILL = (Stretch("idle", 25), Stretch("decode", 30, 1, 0, 0.1, ends=False), Stretch("silent", 200, 1, 0, 0.35))
"""For MindIE, of which it is not known that anything moves by chunk: the honest timeline is one in which nothing does."""


@dataclass(frozen=True)
class About:
    """How a family writes its metrics: simulated as, and per plain name its type and help."""

    engine: str
    lines: Mapping[str, tuple[str, str]]


SGLANG = {
    "sglang:num_running_reqs": ("gauge", "The number of running requests."),
    "sglang:num_queue_reqs": ("gauge", "The number of requests in the waiting queue."),
    "sglang:token_usage": ("gauge", "The token usage."),
    "sglang:num_used_tokens": ("gauge", "The number of used tokens."),
    "sglang:prompt_tokens_total": ("counter", "Number of prefill tokens processed."),
    "sglang:generation_tokens_total": ("counter", "Number of generation tokens processed."),
    "sglang:inter_token_latency_seconds": ("histogram", "Histogram of inter-token latency in seconds."),
    "sglang:realtime_tokens_total": ("counter", "The realtime number of tokens processed (per iteration)."),
    "sglang:scheduler_idle_seconds_total": ("counter", "Time the scheduler was idle in seconds."),
    "sglang:http_requests_active": ("gauge", "Number of active HTTP requests."),
}
TRITON = {
    "nv_trt_llm_request_metrics": ("gauge", "TRT LLM request metrics"),
    "nv_trt_llm_general_metrics": ("gauge", "General TRT LLM metrics"),
    "nv_trt_llm_kv_cache_block_metrics": ("gauge", "TRT LLM KV cache block metrics"),
    "nv_inference_count": ("counter", "Number of inferences performed (does not include cached requests)"),
}
MINDIE = {
    "request_received_total": ("counter", "Count of received requests."),
    "request_success_total": ("counter", "Count of successfully processed requests."),
    "num_requests_running": ("gauge", "Number of requests currently running on NPU."),
    "num_requests_waiting": ("gauge", "Number of requests waiting to be processed."),
    "num_requests_swapped": ("gauge", "Number of requests swapped to CPU."),
    "prompt_tokens_total": ("counter", "Number of prefill tokens processed."),
    "generation_tokens_total": ("counter", "Number of generation tokens processed."),
    "npu_cache_usage_perc": ("gauge", "NPU KV-cache usage. 1 means 100 percent usage."),
}
DYNAMO = {
    "dynamo_component_inflight_requests": ("gauge", "Number of requests currently being processed by component endpoint"),
    "dynamo_component_requests_total": ("counter", "Total number of requests processed by component endpoint"),
    "dynamo_component_response_bytes_total": ("counter", "Total number of bytes sent in responses by component endpoint"),
    "dynamo_component_gpu_cache_usage_percent": ("gauge", "GPU cache usage as a fraction"),
    "dynamo_component_uptime_seconds": ("gauge", "Total uptime of the DistributedRuntime in seconds"),
}
TGI = {
    "tgi_batch_current_size": ("gauge", "Current batch size"),
    "tgi_queue_size": ("gauge", "Current number of requests in the queue"),
    "tgi_batch_inference_count": ("counter", "Inference calls per method"),
    "tgi_batch_inference_success": ("counter", "Successful inference calls per method"),
    "tgi_request_count": ("counter", "Total number of requests received"),
    "tgi_request_success": ("counter", "Number of successful requests"),
}
LLAMACPP = {
    "llamacpp:requests_processing": ("gauge", "Number of requests processing."),
    "llamacpp:requests_deferred": ("gauge", "Number of requests deferred."),
    "llamacpp:n_decode_total": ("counter", "Total number of llama_decode() calls"),
    "llamacpp:prompt_tokens_total": ("counter", "Number of prompt tokens processed."),
    "llamacpp:tokens_predicted_total": ("counter", "Number of generation tokens processed."),
}
LMCACHE = {
    "lmcache:num_retrieve_requests_total": ("counter", "Total number of retrieve requests sent to lmcache"),
    "lmcache:num_store_requests_total": ("counter", "Total number of store requests sent to lmcache"),
    "lmcache:num_lookup_requests_total": ("counter", "Total number of lookup requests sent to lmcache"),
}


def vllm_lines() -> Mapping[str, tuple[str, str]]:
    """Type and help of every metric of the recorded vLLM 0.32.0."""
    recorded = (SAMPLES / "vllm-0.32-cpu" / "idle" / "metrics1.txt").read_text(encoding="utf-8")
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", recorded, re.M))
    return {name: (kind, helps.get(name, "")) for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", recorded, re.M)}


def families() -> Mapping[str, About]:
    """Every shipped family."""
    vllm = vllm_lines()
    return {
        "vllm": About("vllm", vllm), "sglang": About("sglang", SGLANG), "trtllm-triton": About("trtllm-triton", TRITON), "mindie": About("mindie", MINDIE),
        "dynamo": About("dynamo", DYNAMO), "lmcache": About("lmcache", {**vllm, **LMCACHE}), "tgi": About("tgi", TGI), "llamacpp": About("llamacpp", LLAMACPP),
    }


def body(about: About, metrics: Metrics) -> str:
    """The text, each metric below its HELP and TYPE lines."""
    groups: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        groups.setdefault(_metric(about, name), {})[name] = value
    return "".join(f"# HELP {name} {about.lines[name][1]}\n# TYPE {name} {about.lines[name][0]}\n{text(series)}" for name, series in groups.items())


def _metric(about: About, name: str) -> str:
    """The name that the TYPE line has: without _count of a histogram."""
    plain = name.partition("{")[0]
    return plain if plain in about.lines else plain.removesuffix("_count")


def timeline(about: About, every_s: float, stretches: tuple[Stretch, ...]) -> Iterator[tuple[dict[str, object], str | None]]:
    """Records and bodies of one timeline."""
    life = Life(stretches, busy_before=40)
    number, clock = 0, 0.0
    while clock < life.seconds:
        now = life.at(clock)
        told = {"url": URL, "ts": EPOCH_S + clock, "monotonic_s": 500.0 + clock}
        if now.up:
            number += 1
            shown = _aged(now, clock) if about.engine == "dynamo" else now
            yield {**told, "file": f"{number:04d}.txt", "outcome": "answer", "status": 200, "seconds": 0.012}, body(about, ENGINES[about.engine](shown))
        else:
            yield {**told, "outcome": "refused", "seconds": 0.001}, None
        clock += every_s


def _aged(now: Now, clock: float) -> Now:
    now.born -= clock
    return now


def write(folder: Path) -> None:
    """All families. The folder of each is written anew."""
    for kind, about in families().items():
        place = folder / kind
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        busy = Life((DECODE,), busy_before=40).at(30.0)
        (place / "metrics.txt").write_text(body(about, ENGINES[about.engine](busy)), encoding="utf-8")
        for name, (every_s, stretches) in TIMELINES.items():
            within = place / name
            within.mkdir()
            listed = []
            for record, content in timeline(about, every_s, SILENT_PREFILL if (kind, name) == ("mindie", "long-prefill") else stretches):
                listed.append(json.dumps(record) + "\n")
                if content is not None:
                    (within / str(record["file"])).write_text(content, encoding="utf-8")
            (within / "reads.jsonl").write_text("".join(listed), encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
