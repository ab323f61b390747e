"""Logs of one's own: what a map makes of them, and every way it can be wrong."""

import pytest

from diag.collectors import events
from diag.errors import BadInput
from diag.model import Artefact
from diag.parsers import events_map
from diag.parsers.log_clock import Clock
from tests.parsers.event_cases import at

MAP = r"""
[[event]]
file = "watch-*.log"
kind = "restart"
initiator = "chat-watchdog"
regex = '^(?P<ts>\S+ \S+) .*restarting (?P<unit>\S+)'
period_s = 300
timeout_s = 45
strikes = 5

[[event]]
file = "watch-*.log"
kind = "probe_failed"
initiator = "chat-watchdog"
regex = '^(?P<ts>\S+ \S+) probe (?P<detail>.+ (?P<code>\d+))$'
unit = "vllm.service"
what = "POST /v1/chat/completions"

[[event]]
file = "*/router/*.log"
kind = "traffic_switch"
initiator = "router"
regex = '"at":(?P<ts>\d+).*"to":"(?P<unit>[^"]+)"'
"""
WATCH = "2026-01-01 10:00:00 probe timed out after 45\n2026-01-01 10:00:01 probe fine\n2026-01-01 10:20:00 five in a row, restarting vllm.service\n"


def rows(text: str, *logs: tuple[str, str]) -> list[tuple[str, dict[str, object]]]:
    artefacts = [Artefact.of_bytes("events-map.toml", "events", text.encode()), *(Artefact.of_bytes(name, "", data.encode()) for name, data in logs)]
    assert events.recognise("events-map.toml", text.encode())
    return [(table, dict(row)) for table, row in events.parse(artefacts)]


def test_a_map() -> None:
    found = rows(MAP, ("watch-chat.log", WATCH), ("logs/router/a.log", '{"at":1767261600000,"to":"gpu-2"}\n'))
    got = [(row["ts"], row["origin"], row["kind"], row["unit"], row["initiator"], row["code"], row["detail"], row["source"]) for table, row in found if table == "host_events"]
    assert got == [
        (at("2026-01-01T10:00:00"), "map", "probe_failed", "vllm.service", "chat-watchdog", 45, "timed out after 45", "watch-chat.log:1"),
        (at("2026-01-01T10:20:00"), "map", "restart", "vllm.service", "chat-watchdog", None, "2026-01-01 10:20:00 five in a row, restarting vllm.service", "watch-chat.log:3"),
        (at("2026-01-01T10:00:00"), "map", "traffic_switch", "gpu-2", "router", None, '{"at":1767261600000,"to":"gpu-2"}', "logs/router/a.log:1"),
    ]
    (rule,) = [row for table, row in found if table == "watchdog_rules"]
    assert rule == {"initiator": "chat-watchdog", "period_s": 300.0, "timeout_s": 45.0, "strikes": 5, "what": "POST /v1/chat/completions", "unit": "vllm.service", "delay_s": None,
                    "source": "events-map.toml#event 1"}  # fmt: skip
    assert [(row["file"], row["format"], row["events"]) for table, row in found if table == "event_files"] == [("watch-chat.log", "map", 2), ("logs/router/a.log", "map", 1)]


def test_what_never_matches_is_said() -> None:
    found = rows(MAP, ("watch-chat.log", "2026-01-01 10:00:00 all is well\n"))
    (said,) = [row for table, row in found if table == "collected"]
    assert said["reason"] == (
        "events-map.toml: event 1 (restart by chat-watchdog): its regex matched no line of watch-chat.log; "
        "events-map.toml: event 2 (probe_failed by chat-watchdog): its regex matched no line of watch-chat.log; "
        "events-map.toml: event 3 (traffic_switch by router): no file matches '*/router/*.log'"
    )
    undated = rows(MAP, ("watch-chat.log", "at noon restarting vllm\n"))
    (row,) = [row for table, row in undated if table == "host_events"]
    assert row["ts"] is None
    (said,) = [row for table, row in undated if table == "collected"]
    assert "event 1 (restart by chat-watchdog): 'at noon' is no time that is known" in str(said["reason"])


ENTRY = {"file": '"a.log"', "kind": '"restart"', "initiator": '"me"', "regex": "'(?P<ts>x)'"}


def entry(**changed: str | None) -> str:
    return "[[event]]\n" + "".join(f"{key} = {value}\n" for key, value in (ENTRY | changed).items() if value is not None)


WRONG = [
    (entry(colour='"red"'), "m.toml: event 1: Object contains unknown field `colour`"),
    (entry(regex=None, kind=None), "m.toml: event 1: Object missing required field"),
    (entry() + entry(kind='"reboot"'), "m.toml: event 2: kind: 'reboot' is no kind of event"),
    (entry(strikes="0"), r"event 1: Expected `int` >= 1 - at `\$.strikes`"),
    (entry(period_s='"soon"'), r"event 1: Expected `float \| null`, got `str` - at `\$.period_s`"),
    (entry(regex="'(?P<ts>x)(?=y)'"), r"event 1: regex: invalid perl operator: \(\?="),
    (entry(regex=r"'(?P<ts>x)\1'"), "event 1: regex: invalid escape sequence"),
    (entry(regex="'('"), "event 1: regex: missing \\)"),
    (entry(regex="'x'"), "event 1: regex: no group"),
    (entry(regex="'(?P<ts>x)(?P<who>y)'"), "event 1: regex: unknown group 'who'"),
    ("x = 1\n" + entry(), "m.toml: unknown key 'x'"),
    ("event = 1\n", r"m.toml: no \[\[event\]\] in it"),
    ("[[event]\n", "m.toml: not TOML: .*line 1"),
    (entry(file='""'), "event 1: .*file"),
    (entry(strikes="9" * 5_000), "m.toml: not TOML: .*digits"),
    ("x = " + "[" * 5_000, "m.toml: not TOML: .*recursion"),
]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_a_wrong_map_names_file_entry_and_key(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as error:
        events_map.read(text, "m.toml")
    assert error.value.hint


def test_a_map_that_a_windows_editor_saved() -> None:
    found = rows("\ufeff" + MAP.lstrip().replace("\n", "\r\n"), ("watch-chat.log", WATCH.replace("\n", "\r\n")))
    assert [row["kind"] for table, row in found if table == "host_events"] == ["probe_failed", "restart"]


def test_a_regex_that_would_blow_up_elsewhere_runs_in_linear_time() -> None:
    found = events_map.read(entry(regex="'(?P<ts>(a+)+)$'"), "m.toml")
    artefact = Artefact.of_bytes("a.log", "", b"a" * 100_000 + b"!\n")
    from diag.parsers.event_rows import Said

    assert list(events_map.events(found, "a.log", artefact.lines(), artefact.at, Said(), Clock(None, None, None))) == []


TIMES = [
    ("2026-01-01 10:00:00", "2026-01-01T10:00:00"), ("2026-01-01T10:00:00.5Z", "2026-01-01T10:00:00.5"), ("[2026-01-01 10:00:00,123]", "2026-01-01T10:00:00.123"),
    ("2026/01/01 10:00:00 +0200", "2026-01-01T08:00:00"), ("1767261600", "2026-01-01T10:00:00"), ("1767261600.25", "2026-01-01T10:00:00.25"),
    ("1767261600250", "2026-01-01T10:00:00.25"), ("Jan  1 10:00:00", "2026-01-01T10:00:00"), ("Thu Jan  1 10:00:00 UTC 2026", "2026-01-01T10:00:00"),
    ("01/Jan/2026:10:00:00 +0000", "2026-01-01T10:00:00"), ("01-01 10:00:00", "2026-01-01T10:00:00"), ("10:00:00", None), ("2026-13-01 10:00:00", None), ("", None),
    ("0001-01-01 00:00:00Z", None), ("9999-12-31 23:59:59Z", None), ("0000-00-00 00:00:00", None), ("2026-01-01 10:00:00 +99:99", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "time"), TIMES)
def test_times(text: str, time: str | None) -> None:
    assert events_map.time_of(text, Clock(2026, "UTC", None)) == (None if time is None else at(time))
