"""What a process of an inference service is there for, by its command line or title."""

import re

from diag import procfs

ROLES: tuple[tuple[str, str], ...] = (
    ("other", r"multiprocessing\.(resource|semaphore)_tracker"),
    ("engine_core", r"^\S*::(DP)?EngineCor"),
    ("worker", r"^\S*::(Worker|DiffusionWorker|RayWorker|TP\d|DP\d|async_draft|draft)|^VllmWorker|^ray::\S*Worker|^gunicorn: worker"),
    ("worker", r"^mindie_llm_backend|^text-generation-server|^dynamo\.(vllm|sglang|trtllm|mocker|llama_cpp)\b"),
    ("scheduler", r"^\S*::(semi_pd_)?schedul"),
    ("detokenizer", r"^\S*::(multi_)?detoken"),
    ("api_server", r"^\S*::(APIServer|http_se|tokenizer|multi_tokenizer|multimodal_tokenizer)"),
    ("manager", r"^\S*::(data_pa|DPCoord)|^torchrun\b|^torch\.distributed\.(run|launch)|^(accelerate|deepspeed|mpirun|orterun)\b"),
    ("manager", r"^(raylet|gcs_server)\b|^text-generation-launcher|gpu_memory_service|^lmcache_controller|^lmcache\.\S*controller"),
    ("watchdog", r"^\S*(watchdog|health_?check|keepalived|autoheal)|^(monit|supervisord)\b"),
    ("router", r"^dynamo[.-](frontend|router)|^dynamo-run|^(vllm|sglang|text-generation|llm-d|production-stack)[-_.]router"),
    ("router", r"^(litellm|envoy|nginx|nginx:|haproxy|traefik)\b|^sglang_router|^vllm_router"),
    ("cache_server", r"^(redis|valkey|keydb)-server\b|^(memcached|dragonfly|falkordb)\b|^mooncake_(master|store)"),
    ("cache_server", r"^lmcache(_server|\.server|\.v1\.(multiprocess|server|cache_controller|distributed)\S*| server)"),
    ("api_server", r"^vllm serve\b|^vllm\.entrypoints\.(\S*(api_server|grpc)|cli\.main serve\b)|^api_server\.py"),
    ("api_server", r"^sglang\.launch_server|^launch_server\.py|^sglang serve|^lmdeploy serve|^trtllm-serve|^aphrodite"),
    ("api_server", r"^tritonserver|^mindieservice_daemon|^(uvicorn|gunicorn|hypercorn|granian|daphne)\b|^llama-server\b"),
)
"""What a program's name says of its role, first match wins; searched in `procfs.program` of the command line."""

SPAWNED = re.compile(r"^-c from multiprocessing\.(spawn|forkserver) |--multiprocessing-fork")
SERVES = frozenset(("api_server", "engine_core", "manager"))
"""Whose unnamed multiprocessing children are workers."""


def role(command: str, comm: str | None = None) -> str:
    """What a command line, or failing that a kernel name, says of the role: `other` when it says nothing."""
    program = procfs.program(command.split()) or comm or ""
    return next((name for name, pattern in ROLES if re.search(pattern, program)), "other")
