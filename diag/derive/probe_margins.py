"""Each probe's timeout, period and threshold against how long its path, and a start, were measured to take."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from diag.restarts import margins
from diag.restarts.margins import Margin
from diag.restarts.records import WatchRule
from diag.tables import Table, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

NEEDS = ("watchdog_rules",)
WANTS = ("http_events", "metrics", "restarts", "engine_freezes")
GIVES: tuple[Table, ...] = (
    table(
        "probe_margins",
        "Patience of each probe against what was measured, one row per probe and measure",
        "initiator VARCHAR: who probes", "unit VARCHAR: whom; NULL = not said", "what VARCHAR: what it asks",
        "period_s DOUBLE: how often; NULL = not said", "timeout_s DOUBLE: how long it waits; NULL = not said", "strikes BIGINT: failures until it acts; NULL = not said",
        "tolerance_s DOUBLE: silence until it acts, period x (strikes - 1) + timeout; NULL = not said",
        "measure VARCHAR: latency | start-up", "allowed_s DOUBLE: what it allows", "measured_s DOUBLE: p99 of the latency, longest start",
        "n BIGINT: requests or starts that were measured", "late_pct DOUBLE: share of requests that took longer than its timeout; NULL = a start",
        "tight BOOLEAN: it does not leave room", "says VARCHAR: in words",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]
OF_PATHS = "http_request_duration_seconds_bucket"


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """watchdog_rules and what was measured -> probe_margins."""
    import pandas as pd

    rows: list[dict[str, object]] = []
    for record in frames["watchdog_rules"].astype(object).where(frames["watchdog_rules"].notna(), None).to_dict("records"):
        given: dict[str, Any] = {str(name): value for name, value in record.items()}
        strikes = None if given["strikes"] is None else int(given["strikes"])
        rule = WatchRule(
            str(given["initiator"]), str(given["what"] or ""), str(given["source"]), given["period_s"], given["timeout_s"], strikes, given["unit"], given["delay_s"]
        )  # fmt: skip
        found = {name: _same(frames[name], given) for name in WANTS}
        for item in _margins(rule, found):
            rows.append({
                **{key: given[key] for key in (*KEYS, "source")}, "initiator": rule.initiator, "unit": rule.unit, "what": rule.what, "period_s": rule.period_s,
                "timeout_s": rule.timeout_s, "strikes": rule.strikes, "tolerance_s": margins.tolerance_s(rule), **vars(item),
            })  # fmt: skip
    return {"probe_margins": pd.DataFrame(rows)} if rows else {}


def _same(frame: "pd.DataFrame", given: "Mapping[str, Any]") -> "pd.DataFrame":
    """Rows of the same capture."""
    for key in KEYS:
        frame = frame[frame[key].isna() if given[key] is None else frame[key] == given[key]]
    return frame


def _margins(rule: WatchRule, found: "Mapping[str, pd.DataFrame]") -> Iterator[Margin]:
    path = margins.path_of(rule.what)
    if path is not None:
        requests = found["http_events"].dropna(subset=["seconds", "path", "ts"])
        for since, until in zip(found["engine_freezes"]["since"], found["engine_freezes"]["until"], strict=True):
            requests = requests[(requests["ts"] < since) | (requests["ts"] > until)]  # what a stuck engine took tells nothing of the probe
        item = margins.latency(rule, [float(value) for value in requests[requests["path"] == path]["seconds"]])
        item = item if item is not None else margins.histogram(rule, _buckets(found["metrics"], path))
        if item is not None:
            yield item
    starts = found["restarts"].dropna(subset=["restarted_at", "ready_at"])
    if rule.unit is not None:
        starts = starts[starts["unit"].isna() | (starts["unit"] == rule.unit)]
    item = margins.start_up(rule, [float(value) for value in (starts["ready_at"] - starts["restarted_at"]).dt.total_seconds()]) if len(starts) else None
    if item is not None:
        yield item


def _buckets(metrics: "pd.DataFrame", path: str) -> list[tuple[float, float]]:
    """Cumulative buckets of the last read, summed over all other labels."""
    rows = metrics[(metrics["name"] == OF_PATHS) & metrics["value"].notna()]
    if rows.empty:
        return []
    found: dict[float, float] = {}
    last = rows[rows["read"] == rows["read"].max()]
    for labels, value in zip(last["labels"], last["value"], strict=True):
        known = json.loads(labels or "{}")
        if known.get("handler") != path:
            continue
        try:
            bound = float(known.get("le", "nan").replace("+Inf", "inf"))
        except ValueError:
            continue
        if bound == bound:
            found[bound] = found.get(bound, 0.0) + float(value)
    return sorted(found.items())
