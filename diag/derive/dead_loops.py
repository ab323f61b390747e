"""Main threads at the end of their program: in how many dumps, and how long after the log told what ended the loop."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("thread_places",)
WANTS = ("log_events",)
GIVES: tuple[Table, ...] = (
    table(
        "dead_loops",
        "Processes whose main thread waits at the end of its program, and since when the log says so",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: its main thread", "role VARCHAR: role of the process; NULL = not known",
        "samples BIGINT: samples in which it stands there", "chain VARCHAR: innermost functions of the last one, innermost first, joined by <-",
        "failed_ts TIMESTAMP: last failure before the last dump of which the log of such a process tells; NULL = none",
        "lingers_s DOUBLE: from there to the last dump; NULL = not known",
    ),
)  # fmt: skip
PLACE = "interpreter-ends"
KEPT = ("bundle", "host", "capture", "source", "pid", "started_at", "tid", "role", "samples", "chain")
FAILURES = ("traceback", "fatal")
Row = Mapping[str, Any]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """thread_places (+ log_events) -> dead_loops."""
    import pandas as pd

    places, events = frames["thread_places"], frames["log_events"]
    ended = _rows(places[places["main"] & (places["place"] == PLACE)])
    failures = _rows(events[events["event"].isin(FAILURES) & events["ts"].notna()])
    found = [{**{name: row[name] for name in KEPT}, **_lingers(row, failures)} for row in ended]
    return {"dead_loops": pd.DataFrame(found)} if found else {}


def _lingers(row: Row, failures: Sequence[Row]) -> dict[str, object]:
    """Lines name a process by its pid, or (SGLang's ranks) by its role."""
    dumped = row["last_ts"]
    mine = [
        line["ts"] for line in failures
        if (line["bundle"], line["capture"]) == (row["bundle"], row["capture"]) and dumped is not None and line["ts"] <= dumped
        and (line["pid"] == row["pid"] if line["pid"] is not None else line["role"] is not None and line["role"] == row["role"])
    ]  # fmt: skip
    failed = max(mine, default=None)
    return {"failed_ts": failed, "lingers_s": None if failed is None else (dumped - failed).total_seconds()}


def _rows(frame: "pd.DataFrame") -> list[Row]:
    """Rows with None for what is unknown."""
    return cast("list[Row]", frame.astype(object).where(frame.notna(), None).to_dict("records"))
