"""Which lines of engines are known events: texts of vLLM, SGLang and what they rest on, by version and name of the event."""

import re

EVENTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    # (event, texts of which one must occur, regex that must be found as well); the first that fits names the line.
    ("engine_stats", ("Avg prompt throughput:",), ""),
    ("engine_stats", ("Prefill batch", "Decode batch"), r"^(?:Prefill|Decode) batch\b"),
    ("startup", ("non-default args:", "server_args=ServerArgs(", "Started server process [", "Waiting for application startup"), ""),
    ("startup", ("vLLM API server version", "vLLM server version", "Starting vLLM server on", "Starting vLLM API server"), ""),
    ("startup", ("version ",), r"[▄█▀].*\bversion \d+\.\d+"),
    ("engine_init", ("Initializing a V1 LLM engine", "Initializing an LLM engine", "Init torch distributed"), ""),
    ("engine_init", (" is assigned as DP rank ",), r"^rank \d+ in world size"),
    ("weights_loading", ("Starting to load model ", "Load weight begin", "Time spent downloading weights"), ""),
    ("weights_loading", ("Filesystem type for checkpoints: ",), ""),
    ("weights_loaded", ("Loading weights took ", "Model loading took ", "Loading model weights took ", "Load weight end", "Weights are ready"), ""),
    ("weights_loaded", ("Initializing model took ", "Prefetching checkpoint files into page cache finished", "Online quantization as part of model loading"), ""),
    ("kv_size", ("KV cache size: ", "Available KV cache memory", "KV Cache is allocated", "Memory pool end.", "# GPU blocks: ", "max_total_num_tokens="), ""),
    ("kv_size", ("Maximum concurrency for ",), r"tokens per request"),
    ("version", ("version ", "version:", "version="), r"(?i)\b(?:vllm|sglang|flashinfer|lmcache|nccl|torch|pytorch|nixl|mooncake) version:?[ =]+v?\d"),
    ("engine_wait", ("core engine proc(s)",), r"^Waiting for"),
    ("compile", ("for vLLM's torch.compile", "Dynamo bytecode transform time", "Compiling a graph for ", "Starting torch.compile"), ""),
    ("compile", ("Directly load the compiled graph", "Directly load AOT compilation", "torch.compile takes ", "profiling/warmup run took"), ""),
    ("graph_capture", ("Graph capturing finished", "Capture cuda graph", "Capture npu graph", "Capture cpu graph", "CUDA graph begin", "CUDA graph end"), ""),
    ("engine_ready", ("init engine (profile, create kv cache",), r"took"),
    ("engine_ready", ("Engine startup timings (s):",), ""),
    ("ready", ("Application startup complete", "The server is fired up and ready to roll"), ""),
    ("futures_after_shutdown", ("cannot schedule new futures after", "Executor shutdown has been called"), ""),
    ("shutdown_signal", ("API server: shutdown triggered", "trigger received signal=", "KeyboardInterrupt: terminated"), ""),
    ("shutdown_signal", ("SIGTERM", "SIGINT"), r"(?i)\breceived\b|\bgot\b|\bcaught\b"),
    ("worker_died", ("It usually means one child failed", "It usually means the child failed", " scheduler is dead", "WorkerProc hit an exception"), ""),
    ("worker_died", ("orker", "hild process", "ubprocess", "actor"), r"(?i)\b(?:died|dead|crashed)\b|exited unexpectedly|killed by signal"),
    ("watchdog", ("atchdog timeout (",), ""),
    ("engine_dead", ("EngineDeadError", "EngineCore encountered an issue", "engine core exited unexpectedly"), ""),
    ("engine_dead", ("Engine core proc",), r"died unexpectedly"),
    ("engine_dead", ("Background loop has errored", "AsyncLLM output_handler failed", "AsyncEngineDeadError"), ""),
    ("fatal", ("encountered a fatal error", "EngineCore failed to start", "Engine core initialization failed", "Fatal Python error"), ""),
    ("fatal", ("Scheduler hit an exception", "TokenizerManager hit an exception", "DetokenizerManager hit an exception"), ""),
    ("fatal", ("Segmentation fault", "core dumped", "terminate called after", "SIGSEGV", "SIGABRT"), ""),
    ("shutdown_step", ("[shutdown] ", "Shutting down", "Waiting for application shutdown", "Application shutdown complete"), ""),
    ("shutdown_step", ("Finished server process", "Gracefully exiting", "aborting in-flight requests", "connections to close"), ""),
    ("memory_short", ("less than desired GPU memory utilization", "No available memory for the cache blocks"), ""),
    ("memory_short", ("memory capacity is unbalanced", "Not enough memory", "larger than the available KV cache memory", "larger than the maximum number of tokens"), ""),
    ("oom", ("out of memory", "OutOfMemoryError", "CUDA_ERROR_OUT_OF_MEMORY", "Out of memory", "oom-kill", "OOM when"), ""),
    ("nccl", ("NCCL", "nccl", "RCCL", "HCCL", "DistBackendError"), r"\bWARN\b|(?i:\b(?:error|timeout|timed out|watchdog|abort(?:ed|ing)?|exception|EI\d{4})\b)|DistBackendError"),
    ("nccl", ("Watchdog caught collective operation", "collective operation timeout"), ""),
    ("cuda_error", ("CUDA error", "CUDA_ERROR_", "cudaError", "device-side assert", "illegal memory access", "AcceleratorError"), ""),
    ("cuda_error", ("unspecified launch failure", "uncorrectable ECC", "CUBLAS_STATUS_", "CUDNN_STATUS_", "HIP error", "hipError"), ""),
    ("cuda_error", ("ACL error", "aclrt", "NPU error", "NPU function error", "Triton Error", "NVML_ERROR"), r"(?i)error|fail"),
    ("shm_broadcast_notice", ("No available shared memory broadcast block", "No available block found in"), ""),
    ("rpc_timeout", ("RPC call to ", "Timed out waiting for engine", "execute_model timed out"), r"(?i)timed out"),
    ("health_fail", ("Health check failed", "health check failed", "Health check timeout", "Health check request"), r"(?i)fail|timeout|time out"),
    ("preemption", ("KV cache pool is full", "is preempted by", "Retract requests"), ""),
    ("sleep_mode", ("to fall asleep", "to wake up tags", "Sleep mode freed"), ""),
    ("request_error", ("Exception in ASGI application", "Error in preprocessing prompt", "Internal Server Error", "Failed to apply"), ""),
    ("request_error", ("equest",), r"(?i)\brequest\b.*\b(?:failed|aborted|timed out|cancelled|rejected|retry)|\b(?:aborted|failed|retrying) request"),
)
_PATTERNS = tuple((event, texts, re.compile(pattern) if pattern else None) for event, texts, pattern in EVENTS)
QUOTES_PROMPT = re.compile(r"^(?:Received request|Added request|Generated response|Receive: |Finish: )")
"""Lines that repeat what a client wrote: words in them are nobody's event."""


def event_of(message: str) -> str | None:
    """Name of the known event a message tells of, or None."""
    if QUOTES_PROMPT.match(message):
        return None
    for event, texts, pattern in _PATTERNS:
        for text in texts:
            if text in message:
                if pattern is None or pattern.search(message):
                    return event
                break
    return None
