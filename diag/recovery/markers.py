"""The log lines that mark stages of a start, as upstream writes them, by engine and version. Data: a new version is a line here.

Each text is what follows the head of a line (time, level, process). `seconds` is what the engine says a thing took.
"""

import re
from dataclasses import dataclass
from typing import Literal

What = Literal["begin", "end", "took"]
STAGES = (
    "detect", "stop", "reclaim", "process", "device", "weights", "compile", "kv_pool", "graphs", "api_up", "ready", "traffic_switched", "warm",
)  # fmt: skip
"""In the order in which they happen."""
OUTAGE = STAGES[: STAGES.index("ready") + 1]
"""Those that end when the engine is ready: their sum and what is unattributed are the time to recover."""


@dataclass(frozen=True)
class Marker:
    """One line of a start. `part` tells apart what a stage says in pieces; a `total` covers them."""

    engine: str
    versions: str
    stage: str
    what: What
    part: str
    pattern: re.Pattern[str]


def _marker(engine: str, versions: str, stage: str, what: What, part: str, pattern: str) -> Marker:
    return Marker(engine, versions, stage, what, part, re.compile(pattern))


_S = r"(?P<seconds>\d+(?:\.\d+)?)"
INIT = "init_engine"
"""Not a stage: profile run, compilation, KV pool and graphs together, as vLLM times them."""

MARKERS: tuple[Marker, ...] = (
    _marker("vllm", "0.6-0.20", "process", "begin", "", r"^vLLM API server version "),
    _marker("vllm", "0.33-", "process", "begin", "", r"^vLLM server version |[▄█▀].*\bversion \d+\.\d+"),
    _marker("vllm", "0.6-", "process", "begin", "", r"^non-default args: |^args: Namespace\("),
    _marker("vllm", "0.6- (V0 and V1)", "device", "begin", "", r"^Initializing an? (?:V1 )?LLM engine \(v"),
    _marker("vllm", "0.8-", "device", "end", "", r"^rank \d+ in world size \d+ is assigned as DP rank "),
    _marker("vllm", "0.6-", "weights", "begin", "", r"^Starting to load model "),
    _marker("vllm", "0.8-", "weights", "took", "download", rf"^Time spent downloading weights for .*: {_S} seconds"),
    _marker("vllm", "0.33-", "weights", "took", "create", rf"^Initializing model took {_S} seconds"),
    _marker("vllm", "0.8.5-", "weights", "took", "read", rf"^Loading weights took {_S} seconds"),
    _marker("vllm", "0.33- (counted in the reading)", "weights", "end", "", r"^Online quantization as part of model loading took "),
    _marker("vllm", "0.8.5-", "weights", "took", "total", rf"^Model loading took \S+ Gi?B(?: memory)? and {_S} seconds"),
    _marker("vllm", "0.6-0.8", "weights", "end", "", r"^Loading model weights took \S+ Gi?B"),
    _marker("vllm", "0.8-", "compile", "begin", "", r"^Using cache directory: .* for vLLM's torch\.compile|^Starting torch\.compile"),
    _marker("vllm", "0.8-", "compile", "took", "dynamo", rf"^Dynamo bytecode transform time: {_S} ?s"),
    _marker("vllm", "0.8-0.11", "compile", "took", "inductor", rf"^Compiling a graph for (?:general|dynamic) shape takes {_S} ?s"),
    _marker("vllm", "0.14-", "compile", "took", "inductor", rf"^Compiling a graph for compile range .* takes {_S} ?s"),
    _marker("vllm", "0.8- (warm cache)", "compile", "took", "cache", rf"^Directly load the compiled graph\(?s?\)? .*took {_S} ?s"),
    _marker("vllm", "0.14- (warm cache)", "compile", "end", "", r"^Directly load AOT compilation from path "),
    _marker("vllm", "0.8-0.20", "compile", "took", "total", rf"^torch\.compile takes {_S} ?s in total"),
    _marker("vllm", "0.10-", "kv_pool", "begin", "", r"^Available KV cache memory: "),
    _marker("vllm", "0.6-", "kv_pool", "end", "", r"KV cache size: [\d,]+ tokens|^# GPU blocks: |^Maximum concurrency for "),
    _marker("vllm", "0.6-", "graphs", "took", "", rf"^Graph capturing finished in {_S} secs?"),
    _marker("vllm", "0.33-", "compile", "took", "init", rf"^init engine \(.*\) took .*\(compilation: {_S} ?s"),
    _marker("vllm", "0.6-", INIT, "took", "total", rf"^init engine \(profile, create kv cache, warmup model\) took {_S} ?s"),
    _marker("vllm", "0.8-", "api_up", "begin", "", r"^Starting vLLM (?:API )?server "),
    _marker("sglang", "0.4-", "process", "begin", "", r"^server_args=ServerArgs\("),
    _marker("sglang", "0.4-", "device", "begin", "", r"^Init torch distributed begin"),
    _marker("sglang", "0.5.10-", "device", "took", "total", rf"^Init torch distributed ends?\..*\belapsed={_S} ?s"),
    _marker("sglang", "0.4-", "device", "end", "", r"^Init torch distributed ends?\."),
    _marker("sglang", "0.4-", "weights", "begin", "", r"^Load weight begin"),
    _marker("sglang", "0.5.10-", "weights", "took", "total", rf"^Load weight end\..*\belapsed={_S} ?s"),
    _marker("sglang", "0.5.23- (deferred)", "weights", "took", "deferred", rf"^Load weight end\. Committed real weights after CUDA graph capture in {_S} ?s"),
    _marker("sglang", "0.4-", "weights", "end", "", r"^Load weight end\."),
    _marker("sglang", "0.5.10-", "weights", "took", "ready", rf"^Weights are ready after {_S} seconds"),
    _marker("sglang", "0.4-", "kv_pool", "end", "", r"^KV Cache is allocated|^Memory pool end"),
    _marker("sglang", "0.4-", "graphs", "begin", "", r"^Capture (?:\S+ )*(?:CUDA|[a-z]+) graph begin"),
    _marker("sglang", "0.4-", "graphs", "took", "", rf"^Capture (?:\S+ )*[a-z]+ graph end\. Time elapsed: {_S} ?s"),
    _marker("sglang", "0.5.23-", "graphs", "took", "", rf"^Capture (?:\S+ )*(?:CUDA|[a-z]+) graph end\..*\belapsed={_S} ?s"),
    _marker("sglang", "0.4-", "graphs", "end", "", r"^Capture (?:\S+ )*(?:CUDA|[a-z]+) graph end"),
    _marker("sglang", "0.4-", "api_up", "begin", "", r"^max_total_num_tokens="),
    _marker("sglang", "0.4-", "ready", "end", "", r"The server is fired up and ready to roll"),
    _marker("any", "uvicorn", "api_up", "end", "", r"Application startup complete"),
)  # fmt: skip

SUMMARY = re.compile(r"^Engine startup timings \(s\): (?P<parts>.*)$")
"""SGLang 0.5.23 and later: one line for all; `cuda_graph` is a list of phases."""
_SUMMED = re.compile(r"\b(load_weight|kv_cache_allocation)=(\d+(?:\.\d+)?)")
_PHASES = re.compile(r"\bcuda_graph=\{([^}]*)\}")
_PHASE = re.compile(r"=(\d+(?:\.\d+)?)")
_OF_SUMMARY = {"load_weight": "weights", "kv_cache_allocation": "kv_pool"}
FIRST = re.compile(r"^vLLM (?:API )?server version |[▄█▀].*\bversion \d+\.\d+|^non-default args: |^args: Namespace\(|^server_args=ServerArgs\(")
"""What a process writes when it begins: a new start, if the one before had come further."""
ENGINE_FIRST = re.compile(r"^Initializing an? (?:V1 )?LLM engine \(v|^Init torch distributed begin")
VERSION = re.compile(r"(?:\bversion |LLM engine \(v)(\d+\.\d+[\w.+]*)")


def markers_of(message: str) -> list[tuple[Marker, float | None]]:
    """All that one line marks, with the seconds it states (None = none)."""
    found = []
    for marker in MARKERS:
        match = marker.pattern.search(message)
        if match is not None:
            found.append((marker, float(match["seconds"]) if "seconds" in marker.pattern.groupindex else None))
    return found


def summed(message: str) -> dict[str, float]:
    """SGLang's summary -> seconds by stage; {} = another line."""
    match = SUMMARY.match(message)
    if match is None:
        return {}
    found = {_OF_SUMMARY[name]: float(value) for name, value in _SUMMED.findall(match["parts"])}
    phases = _PHASES.search(match["parts"])
    if phases is not None and (values := _PHASE.findall(phases[1])):
        found["graphs"] = sum(map(float, values))
    return found
