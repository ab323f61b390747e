"""supervisord's log: who ended a program, and who started it again."""

import pytest

from diag.collectors import events
from diag.model import Artefact
from tests.parsers.event_cases import at, parsed, short

CTL, AUTO = "supervisorctl", "supervisord"


def log(*lines: str) -> str:
    return "".join(f"2026-01-01 00:00:{number:02d},123 {line}\n" for number, line in enumerate(lines))


LINES = [
    ("INFO spawned: 'vllm' with pid 123", [("start", None, 123, None)]),
    ("WARN exited: vllm (exit status 1; not expected)", [("exit", None, None, 1)]),
    ("INFO exited: vllm (exit status 0; expected)", [("exit", None, None, 0)]),
    ("WARN exited: vllm (terminated by SIGKILL; not expected)", [("exit", None, None, 137)]),
    ("WARN exited: vllm (terminated by SIGSEGV (core dumped); not expected)", [("exit", None, None, 139)]),
    ("INFO stopped: vllm (exit status 0)", [("exit", CTL, None, 0), ("stop", CTL, None, None)]),
    ("WARN stopped: vllm (terminated by SIGTERM)", [("exit", CTL, None, 143), ("stop", CTL, None, None)]),
    ("INFO success: vllm entered RUNNING state, process has stayed up for > than 1 seconds (startsecs)", []),
    ("INFO gave up: vllm entered FATAL state, too many start retries too quickly", [("stop", "supervisord (gave up)", None, None)]),
    ("WARN killing 'vllm' (123) with SIGKILL", [("killing", "supervisord (stop timeout)", 123, 9)]),
    ("INFO waiting for vllm to stop", [("killing", CTL, None, None)]),
]


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_lines(line: str, wanted: list[tuple[object, ...]]) -> None:
    rows = parsed(log(line))["host_events"]
    assert [(row["kind"], row["initiator"], row["pid"], row["code"]) for row in rows] == wanted
    assert all((row["unit"], row["ts"], row["detail"], row["source"]) == ("vllm", at("2026-01-01T00:00:00.123"), line[5:], "x.log:1") for row in rows)


def test_by_itself_and_by_order() -> None:
    found = parsed(log(
        "INFO spawned: 'vllm' with pid 1", "WARN exited: vllm (exit status 1; not expected)", "INFO spawned: 'vllm' with pid 2", "INFO waiting for vllm to stop",
        "INFO waiting for vllm to stop", "WARN killing 'vllm' (2) with SIGKILL", "WARN stopped: vllm (terminated by SIGKILL)", "INFO spawned: 'vllm' with pid 3",
    ))  # fmt: skip
    assert [(kind, who) for _, kind, _, who, _ in short(found)] == [
        ("start", None), ("exit", None), ("restart", AUTO), ("start", AUTO), ("killing", CTL), ("killing", "supervisord (stop timeout)"), ("exit", CTL), ("stop", CTL),
        ("start", CTL),
    ]  # fmt: skip
    assert found["event_files"][0]["assumed"] is None


def test_between_the_lines_of_an_engine() -> None:
    """In a container both write to one stream, which is the engine's log."""
    text = "".join(f"INFO:     127.0.0.1:1 - \"GET /health HTTP/1.1\" 200 OK\n{line}" for line in log("INFO spawned: 'vllm' with pid 1", "INFO stopped: vllm (exit status 0)").splitlines(True))
    assert not events.recognise("engine.log", text.encode())
    rows = [row for table, row in events.parse([Artefact.of_bytes("engine.log", "logs", text.encode())]) if table == "host_events"]
    assert [(row["kind"], row["source"]) for row in rows] == [("start", "engine.log:2"), ("exit", "engine.log:4"), ("stop", "engine.log:4")]
