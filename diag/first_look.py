"""What a person wants to know while the window still runs: who is there, who listens, who is stopped or dead. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

Rows = Callable[[str], Sequence[Mapping[str, object]]]
STATES = {"T": "is stopped (state T)", "t": "is stopped by a tracer (state t)", "Z": "has ended and was not reaped (zombie)", "D": "sleeps in the kernel (state D)"}
FROZEN = "is frozen by its control group (a paused container)"
MOST = 5


def sentences(rows: Rows) -> list[str]:
    """From the first read of the processes and sockets."""
    return [*_processes(rows("processes")), *_sockets(rows("sockets"))]


def _processes(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    if not rows:
        return
    roles = Counter(str(row.get("role")) for row in rows)
    named = ", ".join(f"{count} {role}" if count > 1 else role for role, count in roles.most_common())
    yield f"{len(rows)} process{'es' if len(rows) > 1 else ''}: {named}"
    odd = [row for row in rows if row.get("state") in STATES or row.get("frozen_by") is not None]
    for row in odd[:MOST]:
        yield f"pid {row.get('pid')} ({row.get('role')}) {FROZEN if row.get('frozen_by') is not None else STATES[str(row.get('state'))]}"
    if len(odd) > MOST:
        yield f"and {len(odd) - MOST} more processes are stopped, dead or in the kernel"


def _sockets(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    listening = [row for row in rows if row.get("state") == "LISTEN" and row.get("lport") is not None]
    ports = sorted({int(str(row["lport"])) for row in listening})
    if ports:
        yield f"listens on {', '.join(map(str, ports[:MOST]))}{' …' if len(ports) > MOST else ''}"
    waiting = {int(str(row["lport"])): int(str(row.get("recv_q") or 0)) for row in listening}
    for port, count in sorted(waiting.items()):
        if count > 0:
            yield f"{count} connection{'s' if count > 1 else ''} to port {port} wait{'s' if count == 1 else ''} to be accepted"
