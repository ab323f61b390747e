"""Reads written by hand: series of a vLLM engine, one value per read."""

from collections.abc import Mapping, Sequence

from diag.health.reads import Read
from diag.health.verdict import BackendVerdict, judge
from diag.parsers.prometheus import Sample

Values = Sequence[float | None]


def reads(series: Mapping[str, Values], every_s: float | None = 10.0, **labels: str) -> list[Read]:
    """`{"num_requests_running": (1, 1)}` -> reads; names without a colon are of engine 0 of vLLM; None = not there."""
    count = max(len(values) for values in series.values())
    return [_read(series, number, every_s, labels) for number in range(count)]


def _read(series: Mapping[str, Values], number: int, every_s: float | None, labels: Mapping[str, str]) -> Read:
    samples = []
    for line, (name, values) in enumerate(series.items(), start=1):
        value = values[number]
        if value is not None:
            plain, _, more = name.partition("{")
            own = dict(pair.split("=") for pair in more.rstrip("}").split(",")) if more else {}
            full = plain if ":" in plain or plain.startswith(("process_", "nv_", "tgi_", "dynamo_")) else f"vllm:{plain}"
            samples.append(Sample(line, full, {"engine": "0", "model_name": "m", **labels, **own} if full.startswith("vllm:") else {**labels, **own}, value))
    clock = None if every_s is None else number * every_s
    return Read("answer", None if clock is None else 1.79e9 + clock, clock, 200, tuple(samples))


FLAT = {"iteration_tokens_total_count": (7, 7, 7), "prompt_tokens_total": (900, 900, 900), "generation_tokens_total": (50, 50, 50)}
BUSY = {"num_requests_running": (1, 1, 1), "num_requests_waiting": (0, 0, 0)}
IDLE = {"num_requests_running": (0, 0, 0), "num_requests_waiting": (0, 0, 0)}


def verdict(series: Mapping[str, Values], every_s: float | None = 10.0, **more: object) -> BackendVerdict:
    """Judged."""
    return judge(reads(series, every_s), **more)  # type: ignore[arg-type]
