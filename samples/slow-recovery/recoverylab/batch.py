"""What the toy engine computes: slots, a queue, a prefix cache and the counters, under vLLM's metric names. No input and output of its own."""

import contextlib
from collections import deque
from dataclasses import dataclass, field

from recoverylab.place import MODEL, SLOTS

TOKENS_PER_S = 50.0
"""Of one request, in lab seconds, whatever else runs."""
PREFILL_S, CACHED_S = 2.0, 0.15
"""Reading a prompt, and where its prefix is cached."""
FIRST_S = 0.8
"""On top, for each request of the first batch after a start: kernels that are compiled when they are first used."""
KV_TOKENS = 24_576
PROMPT_TOKENS = 1_800
RECENT = 24
"""Requests whose hits make the rate that the log tells."""

METRICS = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {waiting}
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {kv}
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} {prompt}
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {generated}
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf",model_name="{model}"}} {steps}
vllm:iteration_tokens_total_count{{engine="0",model_name="{model}"}} {steps}
vllm:iteration_tokens_total_sum{{engine="0",model_name="{model}"}} {tokens}
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="{model}"}} {queries}
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="{model}"}} {hits}
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{model}"}} {answered}
"""


@dataclass(eq=False)
class Request:
    """One that runs or waits. `reading_s`: what is left of reading its prompt."""

    number: int
    prefix: str
    wanted: int
    reading_s: float = 0.0
    made: float = 0.0


@dataclass
class Batch:
    """The batch, the queue and the counters."""

    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    cached: set[str] = field(default_factory=set)
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    admitted: int = 0
    generated: float = 0.0
    steps: float = 0.0
    hits: int = 0
    answered: int = 0

    def step(self, seconds: float) -> list[int]:
        """What happens in so many lab seconds: numbers of the requests that are done."""
        while self.waiting and len(self.running) < SLOTS:
            self._admit(self.waiting.popleft())
        self.steps += TOKENS_PER_S * seconds if self.running else 0.0
        done = []
        for request in list(self.running):
            read_s = min(request.reading_s, seconds)
            request.reading_s -= read_s
            if request.reading_s <= 0:
                self.cached.add(request.prefix)
                more = min(TOKENS_PER_S * (seconds - read_s), request.wanted - request.made)
                request.made += more
                self.generated += more
            if request.made >= request.wanted:
                self.running.remove(request)
                self.answered += 1
                done.append(request.number)
        return done

    def drop(self, number: int) -> None:
        """Its client went away."""
        self.running = [request for request in self.running if request.number != number]
        for request in [request for request in self.waiting if request.number == number]:
            with contextlib.suppress(ValueError):
                self.waiting.remove(request)

    def _admit(self, request: Request) -> None:
        hit = request.prefix in self.cached
        request.reading_s = (CACHED_S if hit else PREFILL_S) + (FIRST_S if self.admitted < SLOTS else 0.0)
        self.recent.append(hit)
        self.hits += hit
        self.admitted += 1
        self.running.append(request)

    @property
    def seen(self) -> dict[str, float]:
        """The numbers that its log and its metrics are made of."""
        return {
            "running": len(self.running), "waiting": len(self.waiting), "prompt": PROMPT_TOKENS * self.admitted, "generated": int(self.generated), "steps": int(self.steps),
            "answered": self.answered, "kv": round(min(1.0, sum(PROMPT_TOKENS + request.made for request in self.running) / KV_TOKENS), 6),
            "queries": PROMPT_TOKENS * self.admitted, "hits": PROMPT_TOKENS * self.hits, "hit_rate": sum(self.recent) / len(self.recent) if self.recent else 0.0,
        }  # fmt: skip


def metrics(seen: dict[str, float], started_s: float) -> str:
    """The text of /metrics."""
    tokens = int(seen["prompt"] + seen["generated"])
    return METRICS.format(model=MODEL, started=f"{started_s:.2f}", tokens=tokens, **{name: f"{value:g}" if name == "kv" else f"{value:.0f}" for name, value in seen.items()})
