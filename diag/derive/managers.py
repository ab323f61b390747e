"""Outages of an engine, and who should have taken over: was the manager or watchdog there, gone or silent."""

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.recovery.managers import managers, outages, unattended
from diag.recovery.records import Event, Life
from diag.restarts.records import WatchRule
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("host_events", "event_files", "restarts")
WANTS = ("watchdogs", "log_files", "log_events")
_OUTAGE = "outage BIGINT: number of the outage, from 0, in order of time"
GIVES: tuple[Table, ...] = (
    table(
        "outages",
        "Ends of an engine that nobody wanted, until somebody acted",
        _OUTAGE, "unit VARCHAR: unit that was down; NULL = no journal names it", "down_at TIMESTAMP: when it ended",
        "acted_at TIMESTAMP: when somebody acted; NULL = nobody did, as long as the evidence goes on",
        "acted_by VARCHAR: who; NULL = nobody, or not known", "until_ts TIMESTAMP: acted_at, else the end of the evidence",
        "down_s DOUBLE: from down_at to until_ts",
        "unattended BOOLEAN: it took two minutes or more, and whoever watched was gone or silent; NULL = it took so long, and of nobody is it told",
        "what VARCHAR: how it ended; NULL = not told",
    ),
    table(
        "managers",
        "Everybody who is known to watch an engine, in each of its outages",
        _OUTAGE, "manager VARCHAR: its unit, or the initiator of its events",
        "absent BOOLEAN: it was gone, or silent though its rule made it act; NULL = not told",
        "gone_at TIMESTAMP: when it ended; NULL = no end of it is told", "gone_how VARCHAR: what tells of that; NULL = no end of it is told",
        "last_at TIMESTAMP: last sign of it until the outage was over; NULL = none",
        "patience_s DOUBLE: within which its own rule makes it act; NULL = no rule is known", "says VARCHAR: in words",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """restarts, host_events (+ watchdogs) -> outages, managers."""
    import pandas as pd

    out: dict[str, list[dict[str, object]]] = {item.name: [] for item in GIVES}
    for origin, lives in _split(frames["restarts"]).items():
        mine = {name: _split(frames.get(name)).get(origin, []) for name in ("host_events", "event_files", *WANTS)}
        events = [_event(row) for row in mine["host_events"] if row["ts"] is not None and row["kind"] is not None]
        mapped = frozenset(event.initiator for event in events if event.origin == "map" and event.initiator is not None)
        rules = {row["initiator"]: _rule(row) for row in mine["watchdogs"] if row["initiator"] is not None and (row["basis"] != "measured" or row["initiator"] in mapped)}
        given = any(row["format"] == "map" for row in mine["event_files"])
        own = mapped | (frozenset(name for name, rule in rules.items() if "#event" in rule.source) if given else frozenset())
        for number, outage in enumerate(outages([(_life(row), row["who"]) for row in lives], _last(mine))):
            head = {**dict(zip(KEYS, origin, strict=True)), "outage": number}
            found = managers(outage, events, rules, own)
            out["outages"].append({
                **head, "unattended": unattended(outage, found), "unit": outage.unit, "down_at": outage.begin, "acted_at": outage.acted_at, "acted_by": outage.by, "until_ts": outage.end, "down_s": outage.seconds,
                "what": outage.what or None, "source": outage.source,
            })  # fmt: skip
            for item in found:
                out["managers"].append({
                    **head, "manager": item.name, "absent": item.absent, "gone_at": item.gone_at, "gone_how": item.gone_how, "last_at": item.last_at,
                    "patience_s": item.patience_s, "says": item.says, "source": item.source,
                })  # fmt: skip
    return {name: pd.DataFrame(rows) for name, rows in out.items() if rows}


def _last(mine: Mapping[str, Sequence[Mapping[str, Any]]]) -> datetime.datetime | None:
    """When the evidence ends."""
    columns = (("event_files", "last_ts"), ("log_files", "last_ts"), ("host_events", "ts"), ("log_events", "ts"))
    return max((row[column] for name, column in columns for row in mine[name] if row[column] is not None), default=None)


def _split(frame: "pd.DataFrame | None") -> dict[tuple[object, ...], list[dict[str, Any]]]:
    """Rows by capture, None for unknown, times as datetime."""
    if frame is None or frame.empty:
        return {}
    found: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    plain = frame.astype(object).where(frame.notna(), None)
    for row in plain.to_dict("records"):
        known = {str(name): value.to_pydatetime() if hasattr(value, "to_pydatetime") else value for name, value in row.items()}
        found.setdefault(tuple(known.pop(name) for name in KEYS), []).append(known)
    return found


def _event(row: Mapping[str, Any]) -> Event:
    return Event(row["ts"], row["kind"], row["origin"] or "", row["source"] or "", row["unit"], row["initiator"], code=None if row["code"] is None else int(row["code"]), detail=row["detail"] or "")


def _life(row: Mapping[str, Any]) -> Life:
    moments = {name: row[name] for name in ("killed_at", "died_at", "stopped_at", "restarted_at", "ready_at")}
    return Life(row["source"] or "", row["unit"], initiator=row["initiator"], how=row["how"] or "unknown", detail=row["detail"] or "", **moments)


def _rule(row: Mapping[str, Any]) -> WatchRule:
    strikes = row["strikes"]
    return WatchRule(row["initiator"], row["what"] or "not said", row["source"] or "", row["period_s"], row["timeout_s"], None if strikes is None else int(strikes))
