"""Versions that engines and what they rest on print into their logs: lines of log_events -> rows of versions.

    vLLM API server version 0.18.1  ·  █▄█▀ … version 0.32.0  ·  Initializing a V1 LLM engine (v0.32.0) with config: …
    FlashInfer version: 0.6.8.post1  ·  LMCache version 0.3.9  ·  NCCL version 2.27.3+cuda12.9

A log tells some versions, never all: the table does not count as collected by it.
"""

import re
from collections.abc import Iterator

from diag.model import Row

_NUMBER = r"v?(?P<version>\d+(?:\.\d+)+[\w.+\-]*)"
ENGINE = re.compile(rf"(?:vLLM (?:API )?server version |[▄█▀].*\bversion |Initializing an? (?:V\d )?LLM engine \(){_NUMBER}")
NAMED = re.compile(rf"(?i)\b(?P<name>vllm|sglang|flashinfer|lmcache|nccl|torch|pytorch|nixl|mooncake|transformers|triton|xgrammar) version:?[ =]+{_NUMBER}")
COMPONENTS = {"pytorch": "torch"}
MOST_CHARS = 400
"""The rest of a line is its configuration, in which others' versions may stand."""


def of_message(message: str) -> Iterator[tuple[str, str]]:
    """(component, version) that a line names; components as in `versions`."""
    head = message[:MOST_CHARS]
    if match := ENGINE.search(head):
        yield "vllm", match["version"]
        return
    for match in NAMED.finditer(head):
        name = match["name"].lower()
        yield COMPONENTS.get(name, name), match["version"]


def beside(rows: Iterator[Row]) -> Iterator[Row]:
    """Rows of a log, with a row of versions behind the first line that names one."""
    seen: set[tuple[str, str, object]] = set()
    for table, row in rows:
        yield table, row
        if table != "log_events" or row.get("event") not in ("startup", "engine_init", "version"):
            continue
        for component, version in of_message(str(row.get("message") or "")):
            if (component, version, row.get("pid")) not in seen:
                seen.add((component, version, row.get("pid")))
                yield "versions", {"component": component, "version": version, "pid": row.get("pid"), "source": row["source"]}
