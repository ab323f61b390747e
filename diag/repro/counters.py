"""What an engine's /metrics says of its prefix cache: hits, lookups, size, evictions. Pure.

    vllm:prefix_cache_queries_total{engine="0",…} 5120.0        tokens looked up, and of those found
    vllm:prefix_cache_hits_total{engine="0",…} 4096.0
    vllm:cache_config_info{block_size="16",num_gpu_blocks="1024",…} 1.0
    sglang:cached_tokens_total{cache_source="device",…} 4096.0

vLLM's usage gauges count blocks of running requests only: a cache full of blocks that nobody uses at the moment reads 0.
So fullness is what was newly computed since the experiment began against the size of the cache.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from diag.parsers import prometheus
from diag.parsers.prometheus import Sample

# vllm:, vllm_ (relabelled), ray_vllm_ (Ray's wrapper)
VLLM = r"(?:ray_)?vllm[:_]"
Wanted = Callable[[Mapping[str, str]], bool]


def _any(labels: Mapping[str, str]) -> bool:
    return True


def _has(name: str, *values: str) -> Wanted:
    return lambda labels: labels.get(name) in values


@dataclass(frozen=True)
class Names:
    """Where one engine family says it. Patterns of whole sample names, the first that occurs counts."""

    family: str
    hits: tuple[tuple[str, Wanted], ...]
    queries: tuple[tuple[str, Wanted], ...]
    evictions: tuple[str, ...] = ()
    capacity: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()


FAMILIES = (
    Names(
        "vllm",
        hits=((rf"{VLLM}prefix_cache_hits_total", _any), (rf"{VLLM}gpu_prefix_cache_hits_total", _any)),
        queries=((rf"{VLLM}prefix_cache_queries_total", _any), (rf"{VLLM}gpu_prefix_cache_queries_total", _any)),
        evictions=(rf"{VLLM}kv_block_lifetime_seconds_count",),
        usage=(rf"{VLLM}kv_cache_usage_perc", rf"{VLLM}gpu_cache_usage_perc"),
    ),
    Names(
        "sglang",
        hits=(("sglang[:_]cached_tokens_total", _any), ("sglang[:_]realtime_tokens_total", _has("mode", "prefill_cache"))),
        queries=(("sglang[:_]prompt_tokens_total", _any), ("sglang[:_]realtime_tokens_total", _has("mode", "prefill_cache", "prefill_compute"))),
        evictions=("sglang[:_]evicted_tokens_total",),
        capacity=("sglang[:_]max_total_num_tokens",),
        usage=("sglang[:_]token_usage",),
    ),
    Names(
        "trtllm",
        hits=(("trtllm[:_]prompt_cached_tokens_total", _any),),
        queries=(("trtllm[:_]prompt_tokens_total", _any),),
        usage=("trtllm[:_]kv_cache_utilization",),
    ),
    Names("llama.cpp", hits=(), queries=(), usage=("llamacpp:kv_cache_usage_ratio",)),
    Names("mindie", hits=(), queries=(), usage=("npu_cache_usage_perc",)),
)
CONFIG = re.compile(rf"{VLLM}cache_config_info")


@dataclass(frozen=True)
class Counters:
    """One read. None: this engine does not say. Tokens, summed over its engines and ranks."""

    family: str | None = None
    hits: float | None = None
    queries: float | None = None
    evictions: float | None = None
    capacity_tokens: int | None = None
    usage: float | None = None
    """0 to 1, the fullest engine."""
    block_size: int | None = None


def read(text: bytes) -> Counters:
    """A /metrics text -> what it says of the prefix cache; an empty Counters where it is none or names nothing known."""
    samples = list(prometheus.samples(io.BytesIO(text), prometheus.Reading()))
    for names in FAMILIES:
        found = _of(names, samples)
        if found is not None:
            return found
    return Counters()


def _of(names: Names, samples: list[Sample]) -> Counters | None:
    """None: another family, which has no sample of these names."""
    hits, queries = _first(names.hits, samples), _first(names.queries, samples)
    usage = max((sample.value for pattern in names.usage for sample in _named(pattern, samples) if sample.value is not None), default=None)
    configs = [sample for sample in samples if CONFIG.fullmatch(sample.name)] if names.family == "vllm" else []
    if hits is None and usage is None and not configs:
        return None
    sizes = [_number(sample.labels.get("block_size")) for sample in configs]
    blocks = [_number(sample.labels.get("num_gpu_blocks")) for sample in configs]
    capacity = sum(count * size for count, size in zip(blocks, sizes, strict=True) if count and size) or None
    if capacity is None and names.capacity:
        told = _first([(pattern, _any) for pattern in names.capacity], samples)
        capacity = None if told is None else int(told)
    evictions = _first([(pattern, _any) for pattern in names.evictions], samples)
    return Counters(names.family, hits, queries, evictions, capacity, usage, next(filter(None, sizes), None))


def _named(pattern: str, samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if re.fullmatch(pattern, sample.name)]


def _first(wanted: Iterable[tuple[str, Wanted]], samples: list[Sample]) -> float | None:
    """Sum over the samples of the first pattern that has any; None: none has."""
    for pattern, fits in wanted:
        values = [sample.value for sample in _named(pattern, samples) if sample.value is not None and fits(sample.labels)]
        if values:
            return sum(values)
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
