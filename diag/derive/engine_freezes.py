"""Stretches in which an engine held requests and neither tokens nor KV usage moved, from its log."""

import re
from typing import TYPE_CHECKING

from diag.restarts.freezes import freezes
from diag.restarts.records import Line
from diag.tables import Table, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

NEEDS = ("log_events",)
WANTS = ("http_events", "thread_places")
GIVES: tuple[Table, ...] = (
    table(
        "engine_freezes",
        "Stretches of two minutes and more in which the statistics in an engine's log show requests and no progress",
        "file VARCHAR: log", "engine VARCHAR: engine as its lines name it; NULL = they do not",
        "since TIMESTAMP: first line without progress", "until TIMESTAMP: next sign of life or of an end, or the last moment of the evidence",
        "frozen_s DOUBLE: how long", "running BIGINT: requests it held", "lines BIGINT: lines of statistics without progress; after the first vLLM falls silent",
        "ended_by VARCHAR: progress | shutdown | start | end of the log",
    ),
)  # fmt: skip
ENGINE = re.compile(r"^Engine (\d+)")
MARKS = ("shutdown_signal", "futures_after_shutdown", "shutdown_step", "startup")
GROUP = ["bundle", "host", "capture", "file"]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """log_events -> engine_freezes, per log and engine. A dump of one who writes to a log tells of a later moment than its last line."""
    import pandas as pd

    events, requests, dumps = (frames[name] for name in ("log_events", "http_events", "thread_places"))
    wanted = events[events["event"].isin(["engine_stats", *MARKS]) & events["ts"].notna()]
    if not (wanted["event"] == "engine_stats").any():
        return {}
    last = max(moment for moment in (events["ts"].max(), requests["ts"].max()) if moment == moment)
    rows: list[dict[str, object]] = []
    for key, group in wanted.groupby(GROUP, dropna=False, sort=False):
        ordered = group.sort_values(["ts", "line"], kind="stable")
        writers = events.loc[events["file"] == key[-1], "pid"].dropna()
        dumped = dumps.loc[dumps["pid"].isin(writers), "last_ts"].max()
        ends = dumped if dumped > last else last  # NaT is not
        engine = ordered["message"].str.extract(ENGINE, expand=False).where(ordered["event"] == "engine_stats")
        names = sorted(engine.dropna().unique()) or [None]
        for name in names:
            mine = ordered[(ordered["event"] != "engine_stats") | (engine == name if name is not None else engine.isna())]
            lines = [
                Line(ts.to_pydatetime(), event, str(message or ""), source, str(file))
                for ts, event, message, source, file in zip(mine["ts"], mine["event"], mine["message"], mine["source"], mine["file"], strict=True)
            ]
            origin = dict(zip(GROUP, (None if part != part else part for part in key), strict=True))
            rows += [{**origin, "engine": name, **{k: v for k, v in vars(item).items() if k != "file"}} for item in freezes(lines, ends.to_pydatetime())]
    return {"engine_freezes": pd.DataFrame(rows)} if rows else {}
