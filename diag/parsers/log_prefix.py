"""What container runtimes, journals and engines print in front of every line of a tool's output."""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(
    r"(?:"
    r"[\w./-]+\s+\|(?:\s|$)"  # sglang-1  | (docker compose)
    r"|\[pod/[^\]\s]+\]\s"  # [pod/vllm-0/server] (kubectl logs --prefix)
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\s(?:(?:stdout|stderr)\s[FP]\s)?"  # --timestamps, CRI
    r"|[A-Z][a-z]{2}\s+\d{1,2}\s[\d:]{8}\s\S+\s[^\s:]+(?:\[\d+\])?:\s"  # Nov 30 06:00:00 gpu-12 vllm[88]: (journald)
    r"|\([\w .-]*pid=\d+[^)]*\)\s"  # (EngineCore pid=88), (RayWorkerWrapper pid=88, ip=10.0.0.4)
    r"|\[\d{4}-\d\d-\d\d\s[\d:.,]+(?:\s[A-Z]+\d+)*\]\s"  # [2026-11-30 06:00:00 TP0] (SGLang)
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s\d\d-\d\d\s[\d:.]+\s\[[^\]]+\]\s"  # INFO 11-30 06:00:00 [core.py:12] (vLLM)
    r")"
)
MAX_LAYERS = 4


def without_prefix(line: str) -> str:
    """The line as the tool printed it: colours and known prefixes are taken off, its own indentation stays."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    for _ in range(MAX_LAYERS):
        match = _PREFIX.match(line)
        if match is None:
            break
        line = line[match.end() :]
    return line
