"""What the toy engine computes: slots, a queue and the counters, under vLLM's metric names. No input and output of its own."""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field

MODEL = "toy-27b"
TOKENS_PER_S = 8.0
"""Of one request, whatever else runs."""
KV_TOKENS = 40_000
GONE = "cannot schedule new futures after shutdown"

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
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{model}"}} {answered}
# HELP lab_posts_total Requests that wanted something generated.
# TYPE lab_posts_total counter
lab_posts_total {posts}
"""


class ShutDown(RuntimeError):
    """What the executor says that prepares requests."""


@dataclass(eq=False)
class Request:
    """One that runs or waits."""

    prompt: int
    wanted: int
    done: "asyncio.Future[None]"
    made: float = 0.0


@dataclass
class Engine:
    """The batch, the queue and the counters."""

    slots: int
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    hung: bool = False
    prompt: int = 0
    generated: float = 0.0
    steps: float = 0.0
    answered: int = 0

    def step(self, seconds: float) -> None:
        """What happens in so many lab seconds."""
        if self.hung:
            return
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting.popleft()
            self.prompt += request.prompt
            self.running.append(request)
        self.steps += TOKENS_PER_S * seconds if self.running else 0.0
        for request in list(self.running):
            more = min(TOKENS_PER_S * seconds, request.wanted - request.made)
            request.made += more
            self.generated += more
            if request.made >= request.wanted:
                self.running.remove(request)
                self.answered += 1
                if not request.done.done():
                    request.done.set_result(None)

    def drop(self, request: Request) -> None:
        """Its client went away."""
        if not self.hung:
            with contextlib.suppress(ValueError):
                self.running.remove(request)
            with contextlib.suppress(ValueError):
                self.waiting.remove(request)

    def abort(self) -> int:
        """All in flight fail; how many those were."""
        lost = [request for request in (*self.running, *self.waiting) if not request.done.done()]
        for request in lost:
            request.done.set_exception(ShutDown(GONE))
        return len(lost)

    @property
    def kv(self) -> float:
        """Share of the KV cache that is taken."""
        return min(1.0, sum(request.prompt + request.made for request in self.running) / KV_TOKENS)
