"""A toy engine behind a real HTTP server, with vLLM's metric names: what it runs, what moves and what it answers is the test's."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.repro.endpoint import Handler, Response, answer, said

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="toy"}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="toy"}} {waiting}
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="toy"}} {kv}
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="toy"}} 800.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="toy"}} {tokens}
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started}
"""


@dataclass
class Toy:
    """`per_read` tokens more at every read. `answers`: a question to it comes back; else it hangs until `released`."""

    running: int = 0
    waiting: int = 0
    per_read: float = 0.0
    kv: float = 0.01
    started: float = 1796007000.0
    tokens: float = 1000.0
    answers: bool = True
    released: threading.Event = field(default_factory=threading.Event)
    reads: int = 0

    def __call__(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        if path == "/metrics":
            self.reads += 1
            self.tokens += self.per_read
            return text(self.metrics())
        if path == "/v1/models":
            return answer(data=[{"id": "toy"}])
        if not self.answers:
            return Response(wait_for=self.released)
        return said("1", body)

    def metrics(self) -> str:
        return TEXT.format(running=self.running, waiting=self.waiting, kv=self.kv, tokens=self.tokens, started=self.started)


@dataclass
class Slots:
    """An engine with few slots: a question holds one until `released`, the others wait. It decodes `rate` tokens/s a slot all the while."""

    slots: int = 2
    rate: float = 50.0
    released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _here: int = 0
    _since: float = field(default_factory=time.monotonic)

    def __call__(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        if path == "/metrics":
            running = min(self._here, self.slots)
            tokens = 1000 + self.rate * running * (time.monotonic() - self._since)
            return text(TEXT.format(running=running, waiting=self._here - running, kv=0.4, tokens=tokens, started=1796007000.0))
        with self._lock:
            self._here += 1
        return Response(wait_for=self.released)

    @property
    def queued(self) -> int:
        return max(0, self._here - self.slots)


def text(body: str, **headers: str) -> Response:
    return Response(200, body.encode(), {"Content-Type": "text/plain; version=0.0.4", **headers})


def always(response: Response) -> Handler:
    return lambda path, body, headers: response
