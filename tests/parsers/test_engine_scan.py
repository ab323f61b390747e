"""The quick way through a log gives the rows of the slow one: on every sample, and on logs made to differ."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Row
from diag.parsers import engine_events, engine_log, engine_scan
from tests.conftest import SAMPLES
from tests.parsers import test_engine_log

LOGS = sorted(path for path in SAMPLES.rglob("*.log") if path.stat().st_size < 3 << 20)
BLOCKS = (50, 700, 4 << 20)


def slow(data: bytes, year: int | None) -> list[Row]:
    return list(engine_log.rows(engine_log.read(io.BytesIO(data)), origin(), year=year, tz="UTC"))


def quick(data: bytes, year: int | None, block_bytes: int) -> list[Row]:
    return list(engine_scan.rows(io.BytesIO(data), origin(), year=year, tz="UTC", block_bytes=block_bytes))


def origin() -> engine_log.Origin:
    return engine_log.Origin("x.log", lambda line: f"x.log:{line}", [4711], {4711: "api_server"}, {77: 4712}, 1796007298.0, 1796007299.0)


def assert_same(data: bytes, year: int | None = 2026, blocks: Sequence[int] = BLOCKS) -> list[Row]:
    wanted = slow(data, year)
    for block_bytes in blocks:
        found = quick(data, year, block_bytes)
        for one, other in zip(found, wanted, strict=False):
            assert one == other, f"blocks of {block_bytes}"
        assert len(found) == len(wanted)
    return wanted


def test_there_are_samples() -> None:
    assert len(LOGS) >= 5


@pytest.mark.parametrize("path", LOGS, ids=lambda path: "/".join(path.relative_to(SAMPLES).parts))
def test_samples(path: Path) -> None:
    data = path.read_bytes()
    assert_same(data, year=None)
    assert_same(data.replace(b"\n", b"\r\n"), blocks=(4 << 20,))
    assert_same(data.replace(b"(", b"\x1b[1;36m("), blocks=(700,))


HEADS = [
    "(APIServer pid=1) INFO 11-30 02:52:{:02d} [x.py:1] ", "\x1b[1;36m(EngineCore_DP0 pid=12)\x1b[0;0m ERROR 11-30 02:52:{:02d} [core.py:1] ", "(Worker pid=3) ",
    "[2026-11-30 02:52:{:02d} TP0] ", "[2026-11-30 02:53:{:02d}] WARNING x.py:1: ", "INFO:     ", "WARNING:app.cache:", "2026-11-30 02:52:{:02d},123 ERROR app.cache: ",
    "E1130 02:52:{:02d}.594000 4711 torch/x.py:1] ", "/opt/x.py:138: FutureWarning: ", "", "  ", "\t", "sglang-1  | ", "sglang-1  | [2026-11-30 02:52:{:02d} TP1] ",
    "[pod/llm-0/server] INFO:     ", "2026-11-30T02:52:{:02d}.5Z stdout F ", "Nov 30 02:52:{:02d} gpu-1 vllm[123]: ", "Nov 30 02:52:{:02d} gpu-1 vllm[123]: INFO 11-30 09:09:09 [x.py:1] ",
    "[rank3]: ", "(Worker pid=3) ERROR 02-31 02:52:{:02d} [x.py:1] ", "10%|#  |\r(Worker pid=3) INFO 11-30 02:52:{:02d} [x.py:1] ", "node1:123:456 [0] NCCL WARN ",
]  # fmt: skip
BODIES = [
    *(message for message, _ in test_engine_log.EVENTS), "Traceback (most recent call last):", "Traceback (most recent call last)", '  File "/opt/x.py", line 7, in run',
    "    return self.run()", "RuntimeError: cannot schedule new futures after shutdown", "ValueError", "During handling of the above exception, another exception occurred:",
    "", "quite ordinary", "  + Exception Group Traceback (most recent call last):", '  | ValueError: "x"', '127.0.0.1:39218 - "GET /metrics HTTP/1.1" 200 OK',
    '10.0.0.9 - - [30/Nov/2026:02:52:45 +0000] "POST /v1/x HTTP/1.1" 499 0 "-" "curl/8.5" 45.002', "tokens 02:52:45 of 11-30", "e\x00rror fa\x1b[31mtal", "hello \udcff\udc80",
    "x" * 70_000 + " ERROR Traceback (most recent call last)", "CUDA out of mem\x08ory.", "KeyboardInterrupt: terminated", "Request 7 aborted by its client", "request 7 was\x1b[0m \x1b[31maborted\x1b[0m",
]  # fmt: skip
DOCKER = '{{"log":"{}\\n","stream":"stderr","time":"2026-11-30T02:52:45.1Z"}}'


def as_docker(line: str) -> str:
    text = line.replace("\\", "\\\\").replace('"', '\\"').replace("\x1b", "\\u001b").replace("\x00", "\\u0000").replace("\t", "\\t").replace("\r", "\\r").replace("\x08", "\\b")
    return DOCKER.format(text)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    lines: list[str] = []
    for number in range(draw(st.integers(1, 40))):
        head = draw(st.sampled_from(HEADS)).format(number % 60)
        line = head + draw(st.sampled_from(BODIES))
        lines.append(as_docker(line) if draw(st.integers(0, 9)) == 0 and len(line) < 1000 else line)
        if draw(st.integers(0, 7)) == 0:
            lines += ["quite ordinary", "and more"] * draw(st.integers(1, 80))
    text = draw(st.sampled_from(["\n", "\n", "\r\n"])).join(lines)
    return (text + draw(st.sampled_from(["", "\n"]))).encode("utf-8", "surrogateescape")


@given(logs())
@settings(max_examples=150, deadline=None)
def test_logs_made_to_differ(data: bytes) -> None:
    assert_same(data, blocks=(40, 333))


def each(head: str, bodies: Sequence[str]) -> Iterator[str]:
    return (head.format(7) + body for body in bodies)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_with_every_body(head: str) -> None:
    for form in (str, as_docker):
        data = "\n".join(form(line) for line in each(head, [body for body in BODIES if len(body) < 1000])).encode("utf-8", "surrogateescape")
        assert_same(data, blocks=(200,))


def test_every_event_alone_between_ordinary_lines() -> None:
    """One at a time: a neighbour that is kept would hide that a line is not found."""
    for head in ("(EngineCore pid=1) INFO 11-30 02:52:07 [x.py:1] ", "[2026-11-30 02:52:07 TP0] ", "INFO:     ", ""):
        for body in BODIES:
            assert_same(f"ordinary\n{head}{body}\nordinary\n".encode("utf-8", "surrogateescape"), blocks=(4 << 20,))


TAILS = ("", " took", " error", " fail", " timed out", " timeout", " received", " died unexpectedly", " exited unexpectedly", " in world size", "_x version 1.2", " WARN")


@pytest.mark.parametrize("event", engine_events.EVENTS, ids=lambda event: f"{event[0]}-{event[1][0]}")
def test_every_text_of_every_event_is_searched_for(event: tuple[str, tuple[str, ...], str]) -> None:
    name, texts, regex = event
    found = set()
    for text in texts:
        for tail in TAILS if regex else ("",):
            for before in ("", "rank 0", "█ ") if regex else ("",):
                lines = f"ordinary\n(EngineCore pid=1) INFO 11-30 02:52:07 [x.py:1] {before}{text}{tail}\nordinary\n"
                found |= {row["event"] for table, row in assert_same(lines.encode(), blocks=(4 << 20,)) if table == "log_events"}
    assert found, name


def test_a_traceback_is_over_when_its_writer_falls_silent() -> None:
    """Its last line is not waited for: else nothing could be skipped for the rest of the log."""
    head = "(Worker pid=3) ERROR 11-30 02:52:07 [x.py:1] "
    begin = f'{head}Traceback (most recent call last):\n{head}  File "/x.py", line 1, in f\n'
    ordinary = "[2026-11-30 02:52:45] ordinary\n"
    told = begin + f"{head}RuntimeError: x\n" + ordinary * 90 + f"{head}  more of it\n" + ordinary * 110 + f"{head}  alone\n"
    messages = [row["message"] for table, row in assert_same(told.encode(), blocks=(500,)) if table == "log_events"]
    assert messages == ["RuntimeError: x", "  alone"]
    never = begin + ordinary * 5_100 + f"{head}late\n"
    messages = [row["message"] for table, row in assert_same(never.encode(), blocks=(5_000,)) if table == "log_events"]
    assert messages == ["Traceback (most recent call last) … (no exception line)", "late"]


def test_what_has_no_time_gets_that_of_the_last_line_before_it() -> None:
    data = b"[2026-11-30 02:52:07] a\n" + b"ordinary\n" * 50 + b"[2026-11-30 02:52:09] b\n" + b"no time\n" * 50 + b"WARNING:app:careful\n" + b"x\n" * 9 + b"[2026-11-30 02:52:30] z\nx\n"
    (event, file) = assert_same(data, blocks=(1, 64, 4 << 20))
    assert str(event[1]["ts"]) == "2026-11-30 02:52:09"
    assert (str(file[1]["first_ts"]), str(file[1]["last_ts"]), file[1]["lines"]) == ("2026-11-30 02:52:07", "2026-11-30 02:52:30", 114)


def test_turns_of_the_year() -> None:
    text = "".join(f"INFO {month:02d}-{day:02d} 02:52:07 [x.py:1] a\nERROR {month:02d}-{day:02d} 02:52:08 [x.py:1] b\n" * 3 for month in (*range(6, 13), *range(1, 8)) for day in (1, 15))
    times = [row["ts"] for table, row in assert_same(text.encode(), year=2025, blocks=(300, 4 << 20)) if table == "log_events"]
    assert (str(times[0]), str(times[-1])) == ("2025-06-01 02:52:08", "2026-07-15 02:52:08")
