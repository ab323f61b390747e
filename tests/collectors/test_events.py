"""Journals, access logs and maps as files on disk: whose they are, who else reads them, and what a person is told."""

import json
import shutil
from pathlib import Path

import pytest

from diag import evidence, sources
from diag.collectors import discover, events
from diag.errors import BadInput, Garbled
from diag.model import Artefact
from diag.sources import Dates
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

ALL = discover()
STOP = "Aug 20 13:37:51 gpu-7 systemd[1]: Stopping vllm.service - Chat model...\n"
START = "Aug 20 13:38:51 gpu-7 systemd[1]: Started vllm.service - Chat model.\n"
NOISE = "Aug 20 13:37:50 gpu-7 sshd[612]: Accepted publickey for ops\n"
ENGINE = "Aug 20 13:40:00 gpu-7 vllm[4711]: (EngineCore pid=4712) ERROR 08-20 13:40:00 [core.py:935] EngineCore encountered a fatal error.\n"
ACCESS = 'Aug 20 13:40:01 gpu-7 vllm[4711]: INFO:     10.0.0.9:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n'
NGINX = '10.0.0.9 - - [20/Aug/2026:13:40:01 +0000] "POST /v1/completions HTTP/1.1" 499 0 "-" "curl/8" 45.002\n'
MAP = """[[event]]
file = "*watch*.log"
kind = "restart"
initiator = "chat-watchdog"
regex = '^(?P<ts>\\S+ \\S+) restarting (?P<unit>\\S+)'
period_s = 300
"""
WATCH = "2026-08-20 13:37:50 restarting vllm.service\n"


def loaded(folder: Path, *, events_map: Path | None = None) -> evidence.Evidence:
    return evidence.open_paths([folder], dates=Dates(2026, "UTC", None if events_map is None else str(events_map)))


def select(found: evidence.Evidence, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in found.find(sql, "test", 1000).rows]


def owners(folder: Path) -> dict[str, set[str]]:
    (source,) = sources.sources_of([folder], ALL)
    return {name: {artefact.path for artefact in found} for name, found in source.artefacts.items() if found}


def test_each_file_has_its_owner_and_a_whole_journal_two(tmp_path: Path) -> None:
    texts = {
        "journal.log": NOISE * 60 + STOP + START, "unit.log": STOP + START + ENGINE * 3, "engine.log": "(APIServer pid=1) INFO 08-20 13:40:00 [x.py:1] up\n" * 3,
        "dmesg.txt": "[ 1234.567890] INFO: task python3:4711 blocked for more than 120 seconds.\n", "access.log": NGINX * 3, "map.toml": MAP,
        "metrics.txt": "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1.0\n", "ps.txt": "hello\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = owners(tmp_path)
    assert found["events"] == {"journal.log", "access.log", "map.toml"}
    assert found["logs"] == {"unit.log", "engine.log", "journal.log"}
    assert found["host"] == {"dmesg.txt"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_mixed_journal_feeds_both(tmp_path: Path, form: str) -> None:
    lines = [NOISE] * 60 + [STOP, START, ENGINE, ACCESS]
    if form == "text":
        (tmp_path / "journal.log").write_text("".join(lines))
    else:
        with (tmp_path / "journal.json").open("w") as stream:
            for number, line in enumerate(lines):
                who, _, message = line[22:].rstrip("\n").partition(": ")
                ident, _, pid = who.rstrip("]").partition("[")
                second = {STOP: 31, START: 91, ENGINE: 160, ACCESS: 161}.get(line, 30)
                record = {"__REALTIME_TIMESTAMP": str((1787233040 + second) * 10**6), "SYSLOG_IDENTIFIER": ident, "_PID": pid, "MESSAGE": message, "n": str(number)}
                stream.write(json.dumps(record) + "\n")
    found = loaded(tmp_path)
    name = "journal.log" if form == "text" else "journal.json"
    assert select(found, "SELECT kind, unit, source FROM host_events ORDER BY ts") == [
        ("killing", "vllm.service", f"{name}:61"), ("start", "vllm.service", f"{name}:62"),
    ]  # fmt: skip
    assert select(found, "SELECT event, role, pid, source FROM log_events") == [("fatal", "engine_core", 4712, f"{name}:63")]
    assert select(found, "SELECT status, path, source FROM http_events") == [(500, "/v1/completions", f"{name}:64")]
    assert select(found, "SELECT lines, kept FROM log_files") == [(64, 1)]
    times = select(found, "SELECT max(h.ts) < min(l.ts) FROM host_events h, log_events l")
    assert times == [(True,)]


def test_a_journal_writes_lines_with_control_characters_as_numbers(tmp_path: Path) -> None:
    message = list(b"(EngineCore pid=4712) ERR\x1b[31mOR 08-20 13:40:00 [core.py:935] EngineCore encountered a fatal error.")
    records = [{"__REALTIME_TIMESTAMP": "1787233040000000", "SYSLOG_IDENTIFIER": "vllm", "_PID": "4711", "MESSAGE": text} for text in ("ordinary", message, "ordinary")]
    (tmp_path / "journal.json").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert select(loaded(tmp_path), "SELECT event, level, pid, line FROM log_events") == [("fatal", "ERROR", 4712, 2)]


def test_a_journal_without_an_engine_says_nothing_of_engine_logs(tmp_path: Path) -> None:
    (tmp_path / "journal.log").write_text(NOISE + STOP + START)
    status = {(item.table_name): item.status for item in loaded(tmp_path).collected if item.status == "ok"}
    assert "host_events" in status
    assert "log_events" not in status
    assert "log_files" not in status


def test_the_journal_of_a_unit_tells_of_the_unit_too(tmp_path: Path) -> None:
    (tmp_path / "unit.log").write_text(ENGINE * 3 + STOP + START)
    found = loaded(tmp_path)
    assert select(found, "SELECT kind, source FROM host_events ORDER BY ts") == [("killing", "unit.log:4"), ("start", "unit.log:5")]
    assert select(found, "SELECT count(*) FROM log_events WHERE event = 'fatal'") == [(3,)]


def test_a_map_names_logs_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "watch.log").write_text(WATCH)
    (tmp_path / "map.toml").write_text(MAP)
    found = loaded(tmp_path / "evidence", events_map=tmp_path / "map.toml")
    assert select(found, "SELECT kind, unit, initiator, origin, source FROM host_events") == [("restart", "vllm.service", "chat-watchdog", "map", "watch.log:1")]
    assert select(found, "SELECT initiator, period_s FROM watchdog_rules") == [("chat-watchdog", 300.0)]
    assert found.sources[0].unknown == ()
    (tmp_path / "evidence" / "map.toml").write_text(MAP)  # also without the option, and not twice with it
    for again in (loaded(tmp_path / "evidence"), loaded(tmp_path / "evidence", events_map=tmp_path / "map.toml")):
        assert select(again, "SELECT count(*) FROM host_events") == [(1,)]
        assert select(again, "SELECT count(*) FROM watchdog_rules") == [(1,)]


def test_a_map_names_an_engines_log_and_a_log_in_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "watch.log").write_text("2026-08-20 13:37:50 restarting vllm.service\nWARNING:app:careful\n" + ENGINE * 3)
    (tmp_path / "map.toml").write_text(MAP + MAP.replace("*watch*.log", "*-serve.log").replace("^(?P<ts>\\S+ \\S+) restarting (?P<unit>\\S+)", "(?P<ts>\\d\\d-\\d\\d \\S+)"))
    found = loaded(tmp_path)
    assert select(found, "SELECT count(*) FROM host_events") == [(1,)]
    assert select(found, "SELECT count(*) FROM log_events WHERE event = 'fatal'") == [(3,)]
    bundle = SAMPLES / "vllm-0.32-cpu-snapshots" / "idle.zip"
    inside = evidence.open_paths([bundle], dates=Dates(2026, "UTC", str(tmp_path / "map.toml")))
    logs = [artefact.name for artefact in inside.sources[0].artefacts["logs"]]
    assert any(name.endswith("-serve.log") for name in logs), logs
    assert select(inside, "SELECT count(*) > 0, min(ts) > '2026-01-01' FROM host_events WHERE initiator = 'chat-watchdog'") == [(True, True)]


def test_the_option_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "watch.log").write_text(WATCH)
    (tmp_path / "map.toml").write_text(MAP)
    given = (str(tmp_path / "evidence"), "--events-map", str(tmp_path / "map.toml"))
    said = llmdiag("query", *given, "SELECT kind, initiator, ts FROM host_events", "-f", "json")
    assert [(row["kind"], row["initiator"], row["ts"]) for row in said.json["rows"]] == [("restart", "chat-watchdog", "2026-08-20T13:37:50")]
    said = llmdiag("analyze", *given, "-f", "json")
    (fed,) = [item for item in said.json["collected"] if item["table_name"] == "host_events"]
    assert (fed["collector"], fed["status"]) == ("events", "ok")
    assert llmdiag("report", *given).code in (0, 1, 3)
    (tmp_path / "map.toml").write_text(MAP.replace("period_s", "period"))
    for command in (("analyze", *given), ("query", *given, "SELECT 1")):
        wrong = llmdiag(*command)
        assert wrong.code == 2
        assert "map.toml: event 1: Object contains unknown field `period`" in wrong.err
    (tmp_path / "map.toml").write_text("hello = 1\n")
    wrong = llmdiag("analyze", *given)
    assert (wrong.code, "is no events map" in wrong.err) == (2, True), wrong.err


def test_a_wrong_map_in_the_folder_is_an_error_and_torn_json_is_not(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text(MAP.replace('"restart"', '"reboot"'))
    with pytest.raises(BadInput, match=r"map\.toml: event 1: kind"):
        loaded(tmp_path)
    (tmp_path / "map.toml").unlink()
    (tmp_path / "events.json").write_text('{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Event", "reason": "Killing"')
    (status,) = {item.status for item in loaded(tmp_path).collected if item.collector == "events" and item.status != "skipped"}
    assert status == "partial"
    with pytest.raises(Garbled, match=r"events\.json:1: torn"):
        list(events.parse([Artefact.of_bytes("events.json", "events", (tmp_path / "events.json").read_bytes())]))


def test_nothing_is_stolen_from_samples(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "vllm-0.32-cpu", tmp_path / "all")
    assert "events" not in owners(tmp_path / "all")


def test_damaged_journals_cost_no_line(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, NULs, control characters, CR and lines of megabytes."""
    dirt = [b"\xff\xfe\x00 bad\n", b"\x1b[31m", b"x" * (5 << 20) + b"\n", b"\r\n", b"\x00\x00"]
    data = b"".join(STOP.encode() + START.encode().replace(b"\n", b"\r\n") + piece for piece in dirt * 2)
    (tmp_path / "journal.log").write_bytes(NOISE.encode() * 60 + data)
    found = loaded(tmp_path)
    assert select(found, "SELECT kind, count(*) FROM host_events GROUP BY ALL ORDER BY ALL") == [("killing", 10), ("start", 10)]
