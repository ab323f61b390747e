"""What the service is made of: versions, accelerators, command lines. An upstream project asks for it first."""

from collections.abc import Iterator, Mapping

from diag.model import Part, Section
from diag.report.sections import Rows

TITLE = "Environment"
ORDER = 90
READS = {
    "versions": "SELECT DISTINCT host, component, version FROM versions WHERE version IS NOT NULL ORDER BY host, component, version",
    "cards": """
SELECT host, name, tool, count(DISTINCT gpu) AS cards, max(memory_total_bytes) AS memory_bytes
FROM gpu_devices GROUP BY host, name, tool ORDER BY host, name""",
    "commands": """
SELECT host, role, cmd, count(DISTINCT pid) AS processes
FROM process_roles WHERE cmd IS NOT NULL AND role <> 'other' GROUP BY host, role, cmd ORDER BY host, min(pid)""",
}
FIRST = ("vllm", "sglang", "tensorrt_llm", "mindie", "dynamo", "lmdeploy", "vllm_ascend", "torch", "torch_npu", "cuda", "rocm", "nccl", "driver", "python", "kernel")
"""What decides most comes first."""
MAX_COMMANDS = 12


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """One section for all hosts."""
    hosts = sorted({str(row["host"]) for found in rows.values() for row in found})
    parts = [part for host in hosts for part in _of(host, f" of {host}" if len(hosts) > 1 else "", rows)]
    yield Section(TITLE, tuple(parts))


def _of(host: str, whose: str, rows: Mapping[str, Rows]) -> Iterator[Part]:
    own = {name: [row for row in found if str(row["host"]) == host] for name, found in rows.items()}
    versions: dict[str, list[str]] = {}
    for row in own["versions"]:
        versions.setdefault(str(row["component"]), []).append(str(row["version"]))
    if versions:
        ordered = sorted(versions, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
        yield Part(", ".join(f"{name} {' and '.join(versions[name])}" for name in ordered), f"versions{whose}")
    for row in own["cards"]:
        memory = "" if row["memory_bytes"] is None else f", {float(str(row['memory_bytes'])) / (1 << 30):.0f} GiB each"
        yield Part(f"{row['cards']} x {row['name'] or 'unknown'}{memory} (by {row['tool'] or 'an unknown tool'})", f"accelerators{whose}")
    for row in own["commands"][:MAX_COMMANDS]:
        count = "" if row["processes"] == 1 else f" ({row['processes']} processes)"
        yield Part(f"{row['cmd']}{count}", f"{row['role']}{whose}")
    if len(own["commands"]) > MAX_COMMANDS:
        yield Part(f"{len(own['commands']) - MAX_COMMANDS} further command lines are in the table processes.")
