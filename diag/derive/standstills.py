"""Who holds requests and does not get on: by two reads of /metrics, or by the statistics in a log.

One row per engine that was seen moving or standing still with requests; an idle engine has none. The log is asked where
/metrics does not show the opposite: it ends before they were read.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("engine_progress",)
WANTS = ("engine_freezes",)
GIVES: tuple[Table, ...] = (
    table(
        "standstills",
        "Engines with requests: does anything move, by their metrics or their log?",
        "target VARCHAR: host:port of the metrics, or the file", "engine VARCHAR: engine or rank; NULL = not said",
        "running DOUBLE: requests running", "waiting DOUBLE: requests waiting; NULL = not said",
        "still BOOLEAN: it holds requests and nothing moved; FALSE = it gets on", "how VARCHAR: what says so, in words",
    ),
)
KEPT = ("bundle", "host", "capture", "source", "engine")


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """engine_progress (+ engine_freezes) -> standstills."""
    import pandas as pd

    told = list(_by_metrics(_rows(frames, "engine_progress")))
    moving = {(row["bundle"], row["capture"]) for row in told if not row["still"]}
    told += [row for row in _by_log(_rows(frames, "engine_freezes")) if (row["bundle"], row["capture"]) not in moving]
    return {"standstills": pd.DataFrame(told)} if told else {}


def _by_metrics(rows: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        held = (row["running"] or 0) + (row["waiting"] or 0)
        if not row["witnesses"] or (row["moved"] == 0 and (held == 0 or row["resets"])):  # one read, idle, or started anew
            continue
        how = f"{row['moved'] or 'none'} of {row['witnesses']} progress counters of {row['target']} moved between {row['reads']} reads"
        yield {**{name: row[name] for name in (*KEPT, "target", "running", "waiting")}, "still": row["moved"] == 0, "how": how}


def _by_log(rows: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["ended_by"] == "end of the log":
            how = f"{row['file']} shows requests and no progress for {row['frozen_s']:.0f} s, up to the end of the evidence"
            yield {**{name: row[name] for name in KEPT}, "target": row["file"], "running": row["running"], "waiting": None, "still": True, "how": how}


def _rows(frames: "Mapping[str, pd.DataFrame]", name: str) -> list[Mapping[str, Any]]:
    """Rows with None for what is unknown."""
    frame = frames.get(name)
    if frame is None:
        return []
    return cast("list[Mapping[str, Any]]", frame.astype(object).where(frame.notna(), None).to_dict("records"))
