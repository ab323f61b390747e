"""Stages of a start, by the words of each version: what is stated, what lies between lines, and nothing twice."""

import pytest

from diag.recovery.incidents import Capture, recoveries
from diag.recovery.markers import OUTAGE, markers_of
from tests.recovery.logs import lines, seconds, sglang, stages, vllm

V066 = vllm(
    "10:00:00 vLLM API server version 0.6.6",
    "10:00:00 args: Namespace(model='m')",
    "10:00:09 Initializing an LLM engine (v0.6.6) with config: model='m'",
    "10:00:13 Starting to load model m...",
    "10:01:02 Loading model weights took 14.9888 GB",
    "10:01:07 # GPU blocks: 27895, # CPU blocks: 2048",
    "10:01:29 Graph capturing finished in 19 secs, took 0.35 GiB",
    "10:01:29 init engine (profile, create kv cache, warmup model) took 26.61 seconds",
    "10:01:31 Application startup complete.",
    style="core.py:162]",
)
V085 = vllm(  # the seconds of a report of a start of which half a minute is in no line
    "10:00:00 vLLM API server version 0.8.5",
    "10:00:10 Initializing a V1 LLM engine (v0.8.5) with config: model='m'",
    "10:00:12 Starting to load model m...",
    "10:00:13 Loading weights took 0.69 seconds",
    "10:00:13 Model loading took 0.9264 GiB and 0.900123 seconds",
    "10:00:20 Using cache directory: /c/torch_compile_cache/ab/rank_0_0 for vLLM's torch.compile",
    "10:00:20 Dynamo bytecode transform time: 7.51 s",
    "10:00:28 GPU KV cache size: 1,005,024 tokens",
    "10:00:47 Graph capturing finished in 17 secs, took 0.41 GiB",
    "10:00:47 init engine (profile, create kv cache, warmup model) took 34.11 seconds",
    "10:00:58 Starting vLLM API server on http://0.0.0.0:8000",
    "10:00:59 Application startup complete.",
)
V102 = vllm(
    "10:00:00 (APIServer pid=1) vLLM API server version 0.10.2",
    "10:00:20 (EngineCore_DP0 pid=7) Initializing a V1 LLM engine (v0.10.2) with config: model='m'",
    "10:01:25 (Worker_TP0 pid=8) rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 0, EP rank 0",
    "10:01:25 (Worker_TP1 pid=9) rank 1 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 1, EP rank 1",
    "10:01:26 (Worker_TP0 pid=8) Starting to load model m...",
    "10:01:26 (Worker_TP1 pid=9) Starting to load model m...",
    "10:01:36 (Worker_TP0 pid=8) Loading weights took 9.10 seconds",
    "10:01:37 (Worker_TP1 pid=9) Loading weights took 10.40 seconds",
    "10:01:37 (Worker_TP0 pid=8) Model loading took 33.9 GiB and 9.9 seconds",
    "10:01:38 (Worker_TP1 pid=9) Model loading took 33.9 GiB and 11.2 seconds",
    "10:01:53 (Worker_TP0 pid=8) Dynamo bytecode transform time: 15.00 s",
    "10:01:53 (Worker_TP1 pid=9) Dynamo bytecode transform time: 15.20 s",
    "10:03:03 (Worker_TP0 pid=8) Compiling a graph for dynamic shape takes 69.50 s",
    "10:03:03 (Worker_TP1 pid=9) Compiling a graph for dynamic shape takes 70.10 s",
    "10:03:04 (Worker_TP0 pid=8) torch.compile takes 84.50 s in total",
    "10:03:05 (Worker_TP1 pid=9) torch.compile takes 85.30 s in total",
    "10:03:08 (Worker_TP0 pid=8) Available KV cache memory: 28.29 GiB",
    "10:03:08 (EngineCore_DP0 pid=7) GPU KV cache size: 370,800 tokens",
    "10:04:09 (Worker_TP0 pid=8) Graph capturing finished in 60 secs, took 1.20 GiB",
    "10:04:10 (EngineCore_DP0 pid=7) init engine (profile, create kv cache, warmup model) took 150.22 seconds",
    "10:04:11 (APIServer pid=1) Starting vLLM API server 0 on http://0.0.0.0:8000",
    "10:04:12 (APIServer pid=1) Application startup complete.",
)
V144 = vllm(
    "10:00:00 (APIServer pid=1) vLLM API server version 0.14.1",
    "10:00:12 (EngineCore_DP0 pid=7) Initializing a V1 LLM engine (v0.14.1) with config: model='m'",
    "10:00:16 (EngineCore_DP0 pid=7) Starting to load model m...",
    "10:00:30 (EngineCore_DP0 pid=7) Time spent downloading weights for m: 12.250000 seconds",
    "10:00:38 (EngineCore_DP0 pid=7) Loading weights took 7.40 seconds",
    "10:00:39 (EngineCore_DP0 pid=7) Model loading took 15.2 GiB memory and 21.500000 seconds",
    "10:00:45 (EngineCore_DP0 pid=7) Dynamo bytecode transform time: 4.00 s",
    "10:00:49 (EngineCore_DP0 pid=7) Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 3.250 s",
    "10:00:55 (EngineCore_DP0 pid=7) Compiling a graph for compile range (8193, 16384) takes 5.75 s",
    "10:01:10 (EngineCore_DP0 pid=7) Graph capturing finished in 11 secs, took 0.60 GiB",
    "10:01:11 (EngineCore_DP0 pid=7) init engine (profile, create kv cache, warmup model) took 31.40 seconds",
    "10:01:12 (APIServer pid=1) Starting vLLM API server 0 on http://0.0.0.0:8000",
    "10:01:13 (APIServer pid=1) Application startup complete.",
)
V033 = vllm(
    "10:00:00 (APIServer pid=1) vLLM server version 0.33.0, serving model m",
    "10:00:12 (EngineCore pid=7) Initializing a V1 LLM engine (v0.33.0) with config: model='m'",
    "10:00:20 (Worker pid=8) Starting to load model m...",
    "10:00:22 (Worker pid=8) Initializing model took 1.500000 seconds",
    "10:00:31 (Worker pid=8) Prefetching checkpoint files into page cache finished in 8.10s",
    "10:00:32 (Worker pid=8) Loading weights took 9.25 seconds",
    "10:00:33 (Worker pid=8) Starting torch.compile",
    "10:00:55 (Worker pid=8) Initial profiling/warmup run took 24.00 s",
    "10:00:56 (EngineCore pid=7) GPU KV cache size: 370,800 tokens, Maximum concurrency for 8,192 tokens per request: 45.26x",
    "10:01:06 (Worker pid=8) Graph capturing finished in 9 secs, took 0.60 GiB",
    "10:01:07 (EngineCore pid=7) init engine (profile, create kv cache, warmup model) took 34.00 s (compilation: 20.50 s — language_model: 20.50)",
    "10:01:08 (APIServer pid=1) Starting vLLM server on http://0.0.0.0:8000",
    "10:01:09 (APIServer pid=1) Application startup complete.",
)
OLD_SGLANG = sglang(
    "10:00:00 - server_args=ServerArgs(model_path='m')",
    "10:00:14 TP0 Init torch distributed begin.",
    "10:00:14 TP1 Init torch distributed begin.",
    "10:00:19 TP0 Init torch distributed ends. mem usage=0.31 GB",
    "10:00:20 TP1 Init torch distributed ends. mem usage=0.31 GB",
    "10:00:20 TP0 Load weight begin. avail mem=78.81 GB",
    "10:00:20 TP1 Load weight begin. avail mem=78.81 GB",
    "10:01:00 TP0 Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.5 GB",
    "10:01:02 TP1 Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.5 GB",
    "10:01:03 TP0 KV Cache is allocated. #tokens: 442351, K size: 27.00 GB, V size: 27.00 GB",
    "10:01:04 TP0 Memory pool end. avail mem=10.41 GB",
    "10:01:05 TP0 Capture cuda graph begin. This can take up to several minutes. avail mem=9.8 GB",
    "10:01:25 TP0 Capture cuda graph end. Time elapsed: 19.84 s. mem usage=1.20 GB",
    "10:01:26 TP0 max_total_num_tokens=442351, chunked_prefill_size=8192",
    "10:01:28 - INFO:     Application startup complete.",
    "10:01:34 - The server is fired up and ready to roll!",
)
SGLANG_510 = sglang(
    "10:00:00 - server_args=ServerArgs(model_path='m')",
    "10:00:14 - Init torch distributed begin.",
    "10:00:16 - Init torch distributed ends. elapsed=1.85 s, mem usage=0.31 GB",
    "10:00:16 - Load weight begin. avail mem=78.81 GB",
    "10:00:50 - Load weight end. elapsed=33.40 s, type=LlamaForCausalLM, dtype=torch.bfloat16",
    "10:00:51 - KV Cache is allocated. dtype: torch.bfloat16, #tokens: 442351, K size: 27.00 GB",
    "10:00:51 - Memory pool end. avail mem=10.41 GB",
    "10:00:52 - Capture cuda graph begin. This can take up to several minutes. avail mem=9.8 GB",
    "10:01:00 - Capture cuda graph end. Time elapsed: 8.12 s. mem usage=1.20 GB",
    "10:01:01 - max_total_num_tokens=442351, chunked_prefill_size=8192",
    "10:01:02 - INFO:     Application startup complete.",
    "10:01:04 - The server is fired up and ready to roll!",
)
SGLANG_523 = sglang(
    "10:00:00 - server_args=ServerArgs(model_path='m')",
    "10:00:14 - Init torch distributed begin.",
    "10:00:16 - Init torch distributed ends. elapsed=1.85 s, mem usage=0.31 GB",
    "10:00:16 - Load weight begin. avail mem=78.81 GB",
    "10:00:50 - Load weight end. elapsed=33.40 s, type=LlamaForCausalLM",
    "10:00:52 - Capture decode CUDA graph begin. backend=full",
    "10:01:00 - Capture decode CUDA graph end. bs=[1, 2, 4], elapsed=8.12 s, mem usage=1.20 GB",
    "10:01:02 - Engine startup timings (s): load_weight=33.41, kv_cache_allocation=0.62, scheduler_e2e=46.20, cuda_graph={decode=8.13, prefill=2.02}, tokenizer_e2e=3.10",
    "10:01:03 - INFO:     Application startup complete.",
    "10:01:05 - The server is fired up and ready to roll!",
)

EXPECTED = {
    "vLLM 0.6.6": (V066, {"process": 9.0, "device": 4.0, "weights": 49.0, "compile": None, "kv_pool": 7.61, "graphs": 19.0, "api_up": 2.0, "ready": 0.0}, 0.39),
    "vLLM 0.8.5": (V085, {"process": 10.0, "device": 2.0, "weights": 0.900123, "compile": 7.51, "kv_pool": 9.6, "graphs": 17.0, "api_up": 12.0, "ready": 0.0}, -0.01),
    "vLLM 0.10.2": (V102, {"process": 20.0, "device": 66.0, "weights": 11.2, "compile": 85.3, "kv_pool": 4.92, "graphs": 60.0, "api_up": 2.0, "ready": 0.0}, 2.58),
    "vLLM 0.14.1": (V144, {"process": 12.0, "device": 4.0, "weights": 21.5, "compile": 13.0, "kv_pool": 7.4, "graphs": 11.0, "api_up": 2.0, "ready": 0.0}, 2.1),
    "vLLM 0.33.0": (V033, {"process": 12.0, "device": 8.0, "weights": 10.75, "compile": 20.5, "kv_pool": 4.5, "graphs": 9.0, "api_up": 2.0, "ready": 0.0}, 2.25),
    "SGLang 0.4": (OLD_SGLANG, {"process": 14.0, "device": 6.0, "weights": 42.0, "compile": None, "kv_pool": 2.0, "graphs": 19.84, "api_up": 2.0, "ready": 6.0}, 2.16),
    "SGLang 0.5.10": (SGLANG_510, {"process": 14.0, "device": 1.85, "weights": 33.4, "compile": None, "kv_pool": 1.0, "graphs": 8.12, "api_up": 1.0, "ready": 2.0}, 2.63),
    "SGLang 0.5.23": (SGLANG_523, {"process": 14.0, "device": 1.85, "weights": 33.41, "compile": None, "kv_pool": 0.62, "graphs": 10.15, "api_up": 1.0, "ready": 2.0}, 1.97),
}  # fmt: skip


@pytest.mark.parametrize("version", EXPECTED)
def test_stages_by_version(version: str) -> None:
    text, expected, _ = EXPECTED[version]
    assert seconds(text) == pytest.approx(expected), version


@pytest.mark.parametrize("version", EXPECTED)
def test_stages_and_what_no_line_covers_make_the_whole(version: str) -> None:
    text, _, rest = EXPECTED[version]
    (found,) = recoveries(Capture(lines(text)))
    assert found.mttr_s is not None
    assert found.ready_at is not None
    known = sum(stage.seconds or 0.0 for stage in found.stages if stage.stage in OUTAGE)
    assert found.mttr_s - known == pytest.approx(rest, abs=0.011)
    assert found.unattributed_s == pytest.approx(max(rest, 0.0), abs=0.011)


def test_the_parts_of_init_engine_are_not_added_to_it() -> None:
    found = seconds(V102)
    parts = [found["compile"], found["kv_pool"], found["graphs"]]
    assert sum(value or 0.0 for value in parts) == pytest.approx(150.22)


def test_what_the_engine_states_is_cited() -> None:
    cited = {stage.stage: (stage.basis, stage.source) for stage in stages(V085)}
    assert cited["weights"] == ("stated", "server.log:5")
    assert cited["graphs"] == ("stated", "server.log:9")
    assert cited["process"] == ("lines", "server.log:2")


def test_a_log_that_begins_in_the_middle_has_no_process_stage() -> None:
    text = "".join(V102.splitlines(keepends=True)[4:])
    assert seconds(text)["process"] is None
    assert seconds(text)["weights"] == 11.2


def test_half_a_minute_that_no_line_covers_is_said() -> None:
    silent = V085.replace("Application startup complete", "Route: /docs, Methods: GET") + vllm("10:01:29 Application startup complete.")
    silent = silent.replace("10:00:47 [core.py:162] init engine", "10:01:17 [core.py:162] init engine").replace("10:00:58", "10:01:28")
    (found,) = recoveries(Capture(lines(silent)))
    assert found.unattributed_s == pytest.approx(29.99, abs=0.01)
    assert found.bottleneck == "unattributed"


@pytest.mark.parametrize(
    "message",
    [
        "Capture npu graph begin. This can take up to several minutes.",
        "Load weight end. Committed real weights after CUDA graph capture in 4.20 s (deferred)",
        "Weights are ready after 3.50 seconds",
        "Directly load AOT compilation from path /c/aot",
        "Model loading took 15.2 GiB and 21.500000 seconds",
        "Online quantization as part of model loading took 3.30 seconds",
        "CPU KV cache size: 262,144 tokens, Maximum concurrency for 2,048 tokens per request: 128.00x",
    ],
)
def test_a_line_of_the_reference_is_kept_and_marks_something(message: str) -> None:
    (line,) = lines(vllm(f"10:00:00 {message}") if "KV" in message or "took" in message else sglang(f"10:00:00 - {message}"))
    assert markers_of(line.message), line


def test_a_second_start_in_the_same_log_is_another_one() -> None:
    again = V102.replace(" 10:0", " 11:0").replace("pid=7", "pid=17").replace("pid=1)", "pid=11)")
    found = recoveries(Capture(lines(V102 + again)))
    assert [(item.version, item.mttr_s) for item in found] == [("0.10.2", 252.0), ("0.10.2", 252.0)]


def test_a_start_that_failed_and_the_next_are_two() -> None:
    failed = "".join(V102.splitlines(keepends=True)[:6]) + vllm("10:01:30 (EngineCore_DP0 pid=7) EngineCore failed to start.")
    found = recoveries(Capture(lines(failed + V102.replace(" 10:0", " 11:0"))))
    assert [item.ready_at is None for item in found] == [True, False]
    assert found[0].mttr_s is None
