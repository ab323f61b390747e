"""Who was there when an engine was down: the manager's own unit, its own log, and what only looks like its end."""

import datetime

import pytest

from diag.recovery.managers import Manager, Outage, managers, outages
from diag.recovery.records import Event, Life
from diag.restarts.records import WatchRule

DOWN = datetime.datetime(2026, 6, 10, 10, 0, 0)
OUTAGE = Outage("vllm", DOWN, DOWN + datetime.timedelta(minutes=30), None, None, "died", "vllm.log:9")
RULE = WatchRule("engine-manager", "GET /health", "map.toml#event 1", 10.0, 5.0, 3)


def event(minutes: float, kind: str, *, unit: str | None = None, by: str | None = None, code: int | None = None, origin: str = "journald") -> Event:
    return Event(DOWN + datetime.timedelta(minutes=minutes), kind, origin, "journal.log:1", unit, by, code=code, detail=kind)


def only(events: list[Event], *, rule: bool = True, mapped: bool = True, outage: Outage = OUTAGE) -> Manager | None:
    found = managers(outage, events, {"engine-manager": RULE} if rule else {}, frozenset({"engine-manager"}) if mapped else frozenset())
    assert len(found) <= 1, found
    return found[0] if found else None


def absent(*events: Event, rule: bool = True, mapped: bool = True) -> bool | None:
    found = only(list(events), rule=rule, mapped=mapped)
    return None if found is None else found.absent


UNIT = "engine-manager.service"


def test_its_unit_ended_and_did_not_come_back() -> None:
    for kind, code in (("exit", 137), ("exit", 1), ("oom_kill", 9), ("stop", None)):
        assert absent(event(-60, "start", unit=UNIT), event(-12, kind, unit=UNIT, code=code), rule=False, mapped=False) is True, kind
    assert absent(event(-12, "exit", unit=UNIT, code=1), event(-11, "start", unit=UNIT), event(1, "probe_failed", by="engine-manager", origin="map")) is False
    assert absent(event(5, "exit", unit=UNIT, code=1), rule=False, mapped=False) is not True, "it had five minutes to act in"
    assert absent(event(1, "exit", unit=UNIT, code=1), rule=False, mapped=False) is True


def test_jobs_of_a_timer_end_all_the_time() -> None:
    runs = [item for minute in range(-60, 31, 5) for item in (event(minute, "start", unit="watchdog.service"), event(minute + 0.1, "exit", unit="watchdog.service", code=0))]
    found = managers(OUTAGE, runs, {}, frozenset())
    assert [(item.name, item.absent) for item in found] == [("watchdog.service", False)]
    failing = [event(item.ts.minute and (item.ts - DOWN).total_seconds() / 60, item.kind, unit=item.unit, code=1 if item.kind == "exit" else None) for item in runs if item.ts <= DOWN]
    short = Outage("vllm", DOWN, DOWN + datetime.timedelta(minutes=4), None, None, "died", "x")
    assert [item.absent for item in managers(short, failing, {}, frozenset())] != [True], "its next run is not due yet"


def test_silence_counts_where_its_log_was_given_and_its_rule_is_known() -> None:
    seen = event(-40, "probe_failed", by="engine-manager", origin="map")
    assert absent(seen) is True
    assert absent(seen, mapped=False) is None
    assert absent(seen, rule=False) is None
    assert absent(seen, event(2, "probe_failed", by="engine-manager", origin="map")) is False
    assert absent() is True, "a log that was given and has no line of it at all"
    brief = Outage("vllm", DOWN, DOWN + datetime.timedelta(seconds=40), None, None, "died", "x")
    found = only([seen], outage=brief)
    assert found is not None and found.absent is None, "within its patience it need not act"


def test_who_acted_was_there() -> None:
    acted = Outage("vllm", DOWN, DOWN + datetime.timedelta(minutes=30), DOWN + datetime.timedelta(minutes=30), "engine-manager", "died", "x")
    found = only([], outage=acted)
    assert found is not None and found.absent is False


@pytest.mark.parametrize("unit", ["NetworkManager.service", "vllm.service", "postgresql.service", "ModemManager.service", "systemd-logind.service", "package-manager.service"])
def test_other_units_are_no_managers_of_engines(unit: str) -> None:
    assert managers(OUTAGE, [event(-12, "exit", unit=unit, code=1)], {}, frozenset()) == []


@pytest.mark.parametrize("unit", ["vllm-watchdog.service", "llm-health-check", "gpu-memory-manager.service", "autoheal", "dynamo-operator", "keepalived.service"])
def test_these_are(unit: str) -> None:
    assert [item.absent for item in managers(OUTAGE, [event(-12, "exit", unit=unit, code=1)], {}, frozenset())] == [True]


def at(minutes: float) -> datetime.datetime:
    return DOWN + datetime.timedelta(minutes=minutes)


def test_ends_that_somebody_wanted_are_no_outages() -> None:
    died = Life("a", "vllm", died_at=at(0), stopped_at=at(0.1), restarted_at=at(9), how="self", initiator="systemd")
    deploy = Life("b", "vllm", killed_at=at(20), stopped_at=at(21), restarted_at=at(22), how="external", initiator="dana")
    kill = Life("c", "vllm", killed_at=at(30), stopped_at=at(31), how="external", initiator="watchdog")
    own = Life("d", "engine-manager", stopped_at=at(2), how="unknown")
    found = outages([(died, "supervisor"), (deploy, "person"), (kill, "watchdog"), (own, None)], at(60))
    assert [(item.source, item.begin, item.acted_at, item.seconds) for item in found] == [("a", at(0), at(9), 540.0), ("c", at(31), None, 29 * 60.0)]
    assert outages([(kill, "watchdog")], None) == []
