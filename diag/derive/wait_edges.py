"""Who waits for whom: threads for the owner of a mutex, for the other end of a socket, engine cores for their workers.

A wait counts when the thread was in it in the first and in the last read. What a stack says (a place that waits for a
role) becomes an edge to every process of that role in the same capture.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from diag.parsers import syscalls
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS: tuple[str, ...] = ()
WANTS = ("threads", "sockets", "futex_waits", "thread_places", "process_roles")
GIVES: tuple[Table, ...] = (
    table(
        "wait_edges",
        "Who waits for whom: mutexes, sockets and the calls between processes of an engine",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: thread that waits",
        "via VARCHAR: mutex | socket | call (a stack that waits for processes of a role)",
        "to_pid BIGINT: process it waits for; NULL = not on this host, or not found",
        "to_tid BIGINT: thread it waits for; NULL = not known",
        "peer VARCHAR: other end of the socket, address of the mutex, or the role",
        "reads BIGINT: reads or samples that show it",
    ),
)

MACHINE = "x86_64"
"""Of the numbers in a bundle: the evidence does not name the machine, and where a number means another call elsewhere no socket fits."""
CAPTURE = ("bundle", "host", "capture")


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """threads, sockets, futex_waits, thread_places, process_roles (whichever are there) -> wait_edges."""
    import pandas as pd

    edges = [*_mutexes(_rows(frames, "futex_waits")), *_sockets(_rows(frames, "threads"), _rows(frames, "sockets")), *_calls(_rows(frames, "thread_places"), _rows(frames, "process_roles"))]
    return {"wait_edges": pd.DataFrame(edges)} if edges else {}


_Row = Mapping[str, Any]


def _rows(frames: "Mapping[str, pd.DataFrame]", name: str) -> list[_Row]:
    """Rows with None for what is unknown."""
    frame = frames.get(name)
    if frame is None or frame.empty:
        return []
    columns = {column: frame[column].astype(object).where(frame[column].notna(), None).tolist() for column in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _edge(row: _Row, via: str, to_pid: int | None, to_tid: int | None, peer: str | None, reads: int) -> dict[str, Any]:
    kept = {name: row[name] for name in (*CAPTURE, "pid", "started_at", "tid", "source")}
    return {**kept, "via": via, "to_pid": to_pid, "to_tid": to_tid, "peer": peer, "reads": reads}


def _mutexes(rows: list[_Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["reads"] == row["of"] and row["reads"] > 1:
            yield _edge(row, "mutex", row["pid"], row["owner_tid"], row["address"], row["reads"])


def _sockets(threads: list[_Row], sockets: list[_Row]) -> Iterator[dict[str, Any]]:
    """Threads that were in one and the same call on one connection in the first and in the last read."""
    ends = {(*(row[name] for name in CAPTURE), row["pid"], row["fd"]): row for row in sockets if row["raddr"] is not None}
    looks: dict[tuple[object, ...], list[_Row]] = {}
    for row in threads:
        looks.setdefault((*(row[name] for name in CAPTURE), row["pid"], row["tid"]), []).append(row)
    for key, seen in looks.items():
        seen.sort(key=lambda row: row["read"] if row["read"] is not None else -1)
        calls = [(row["syscall"], row["vol_switches"]) for row in seen]
        if len(seen) < 2 or calls[0][0] is None or calls[0] != calls[-1]:  # it was woken between them
            continue
        found = syscalls.call(str(calls[0][0]))
        fd = None if found is None else syscalls.descriptor(found, MACHINE)
        end = None if fd is None else ends.get((*key[:4], fd))
        if end is not None:
            where = str(end["raddr"]) if end["rport"] is None else f"{end['raddr']}:{end['rport']}"
            yield _edge(seen[-1], "socket", end["peer_pid"], None, where, len(seen))


def _calls(places: list[_Row], processes: list[_Row]) -> Iterator[dict[str, Any]]:
    """From a main thread to every process of the role it waits for, also to those of which there is no stack."""
    mains = {(row["bundle"], row["capture"], row["pid"]): row for row in places if row["main"]}
    for row in mains.values():
        if row["waits_for"] is None or row["place"] == "mixed":
            continue
        for other in processes:
            if (other["bundle"], other["capture"], other["role"]) == (row["bundle"], row["capture"], row["waits_for"]) and other["pid"] != row["pid"]:
                there = mains.get((other["bundle"], other["capture"], other["pid"]))
                yield _edge(row, "call", other["pid"], None if there is None else there["tid"], row["waits_for"], row["samples"])
