"""When a dump was taken, of which process: by `date` before it, by stamps of a log around it, by the name of its file."""

import datetime

import pytest

from diag.collectors import logs, stacks
from diag.model import Artefact
from diag.parsers import log_dumps
from diag.parsers.dump_times import date_in
from diag.parsers.log_clock import Clock
from diag.parsers.log_heads import Stamp
from diag.parsers.stack_formats import pid_in
from diag.parts import spelled_out
from tests.collectors.harness import parse

DUMP = '''\
Process 88: sglang::scheduler_TP1
Python v3.12.9 (/opt/venv/bin/python3)

Thread 88 (idle): "MainThread"
    wait (threading.py:355)
    event_loop_overlap (sglang/srt/managers/scheduler.py:1330)
    <module> (<string>:1)
'''
NOON = datetime.datetime(2026, 11, 30, 2, 41, 10)


def rows_of(artefacts: list[Artefact]) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {}
    for table, row in stacks.parse(artefacts):
        found.setdefault(table, []).extend(map(dict, spelled_out(row)))
    return found


def log(text: str, name: str = "server.log") -> Artefact:
    """A loose log, which belongs to its own collector."""
    assert logs.recognise(name, text.encode()[: 64 << 10]), text[:200]
    return Artefact.of_bytes(name, "logs", text.encode())


def dumped(pid: int, at: str) -> str:
    return f"[2026-11-30 {at} TP0] Pyspy dump for PID {pid}:\n{DUMP.replace('88', str(pid))}\n"


BEGIN = "[2026-11-30 02:00:00] server_args=ServerArgs(model_path='x')\n" + "[2026-11-30 02:10:00 TP0] Decode batch. #running-req: 1, #token: 9, gen throughput (token/s): 9.00, #queue-req: 0\n" * 4


@pytest.mark.parametrize(("line", "at"), [
    ("Mon Nov 30 02:41:10 UTC 2026", (2026, 11, 30, "02:41:10", "Z")), ("Mon Nov 30 02:41:10 AM UTC 2026", (2026, 11, 30, "02:41:10", "Z")),
    ("Mon Nov 30 12:41:10 AM CET 2026", (2026, 11, 30, "00:41:10", None)), ("Mon 30 Nov 2026 02:41:10 PM GMT", (2026, 11, 30, "14:41:10", "Z")),
    ("Mon 30 Nov 02:41:10 CET 2026", (2026, 11, 30, "02:41:10", None)), ("Mon, 30 Nov 2026 02:41:10 +0100", (2026, 11, 30, "02:41:10", "+0100")),
    ("=== Mon Nov  9 02:41:10 UTC 2026 ===", (2026, 11, 9, "02:41:10", "Z")), ("# Tue Nov  3 02:41:10 2026", (2026, 11, 3, "02:41:10", None)),
    ("Mon Foo 30 02:41:10 UTC 2026", None), ("on Mon Nov 30 02:41:10 UTC 2026", None), ("02:41:10", None),
])
def test_the_output_of_date(line: str, at: tuple[int, int, int, str, str | None] | None) -> None:
    assert date_in(line) == (None if at is None else Stamp(*at[:4], "", at[4]))


@pytest.mark.parametrize("before", [
    "Mon Nov 30 02:41:10 UTC 2026\n", "$ date -u; py-spy dump --pid 88\nMon Nov 30 02:41:10 UTC 2026\n", "2026-11-30T02:41:10+00:00\n", "=== 2026-11-30 03:41:10+01:00 ===\n",
    "[2026-11-30 02:41:10 TP0] Pyspy dump for PID 88:\n",
])
def test_what_stands_before_a_dump_dates_it(before: str) -> None:
    (row,) = parse(stacks, {"a.txt": before + DUMP})["stack_dumps"]
    assert (row["ts"], row["pid"]) == (NOON, 88)


def test_every_tool_and_prefixes_of_containers() -> None:
    fault = 'Thread 0x00007fb818edb6c0 (most recent call first):\n  File "/srv/fh.py", line 4 in deep\n  File "/srv/fh.py", line 5 in <module>\n'
    assert parse(stacks, {"pid-7.txt": f"Mon Nov 30 02:41:10 UTC 2026\n{fault}"})["stack_dumps"][0]["ts"] == NOON
    stamped = "".join(f"2026-11-30T02:41:10.000Z {line}\n" for line in DUMP.splitlines())
    assert parse(stacks, {"a.txt": stamped})["stack_dumps"][0]["ts"] == NOON


def test_two_dumps_after_one_date_are_not_of_one_moment() -> None:
    rows = parse(stacks, {"a.txt": f"Mon Nov 30 02:41:10 UTC 2026\n{DUMP}\n{DUMP}"})["stack_dumps"]
    assert [(row["sample"], row["ts"]) for row in rows] == [(0, NOON), (1, None)]


def test_order_is_that_of_time_where_all_are_dated() -> None:
    later, earlier = f"Mon Nov 30 02:41:40 UTC 2026\n{DUMP}", f"Mon Nov 30 02:41:10 UTC 2026\n{DUMP}"
    rows = parse(stacks, {"a.txt": later, "b.txt": earlier})["stack_dumps"]
    assert {row["sample"]: row["source"] for row in rows} == {0: "b.txt:2", 1: "a.txt:2"}


def test_a_local_time_is_said_to_be_taken_for_utc() -> None:
    reasons = [row["reason"] for row in parse(stacks, {"a.txt": f"Mon Nov 30 02:41:10 CET 2026\n{DUMP}"})["collected"]]
    assert reasons == ["a.txt: zone UTC assumed (--date, --tz)"]


def test_dumps_inside_a_log_are_samples_of_the_processes_and_times_they_name() -> None:
    text = BEGIN + dumped(88, "02:41:10") + dumped(89, "02:41:11") + BEGIN.splitlines()[1] + "\n" + dumped(88, "02:46:10")
    rows = rows_of([log(text)])
    assert [(row["pid"], row["sample"], str(row["ts"])[11:]) for row in rows["stack_dumps"]] == [(88, 0, "02:41:10"), (88, 1, "02:46:10"), (89, 0, "02:41:11")]
    assert [row["func"] for row in rows["stack_frames"] if (row["pid"], row["sample"]) == (88, 1)] == ["wait", "event_loop_overlap", "<module>"]
    number = next(number for number, line in enumerate(text.splitlines(), 1) if "wait (threading" in line)
    assert rows["stack_frames"][0]["source"] == f"server.log:{number}"
    assert {row["cmd"] for row in rows["processes"]} == {"sglang::scheduler_TP1"}


def test_an_announcement_without_a_time_has_that_of_the_line_before_it() -> None:
    text = BEGIN + f"py-spy dump --native --pid 88\n{DUMP}"
    assert [row["ts"] for row in rows_of([log(text)])["stack_dumps"]] == [datetime.datetime(2026, 11, 30, 2, 10)]


def test_the_same_dump_copied_out_of_the_log_counts_once() -> None:
    copied = Artefact.of_bytes("copied.txt", "stacks", dumped(88, "02:41:10").encode())
    rows = rows_of([copied, log(BEGIN + dumped(88, "02:41:10"))])
    assert [(row["sample"], row["source"]) for row in rows["stack_dumps"]] == [(0, "copied.txt:2")]


def test_dumps_of_an_earlier_life_are_left_out() -> None:
    rows = rows_of([log(BEGIN + dumped(88, "02:41:10") + BEGIN.replace("02:00:00", "02:50:00") + dumped(88, "02:59:10"))])
    assert [str(row["ts"])[11:] for row in rows["stack_dumps"]] == ["02:59:10"]


def test_a_log_without_dumps_says_nothing_of_stacks_nor_does_one_in_a_bundle() -> None:
    assert rows_of([log(BEGIN)]) == {}
    index = Artefact.of_bytes("logs/index.json", "logs", b'{"artefact":"logs","logs":[]}')
    assert rows_of([index, log(BEGIN + dumped(88, "02:41:10"), "logs/0-server.log")]) == {}


@pytest.mark.parametrize("size", [40, 90, 333])
def test_a_dump_across_the_border_of_two_blocks_is_whole(size: int) -> None:
    (found,) = log_dumps.dumps(log(BEGIN * 3 + dumped(88, "02:41:10")), Clock(None, None, None), block_bytes=size)
    assert ([frame.name for frame in found.threads[0].frames], found.ts) == (["wait", "event_loop_overlap", "<module>"], NOON)


@pytest.mark.parametrize(("name", "pid"), [
    ("stacks.4121.txt", 4121), ("pid-4121.dump", 4121), ("4121.faulthandler", 4121), ("worker-tp3-4121.txt", 4121), ("hang.pid7.txt", 7), ("pyspy-88-1.json", 88),
    ("pyspy-1.txt", None), ("rapid-7.txt", None), ("stacks-20261130-024110.txt", None), ("stacks-2026-11-30T02:41:10Z-4121.txt", 4121), ("dump-2026-11-30.txt", None),
    ("python3.11-4121.txt", 4121), ("1-4121-5122.txt", None), ("pyspy-native-512-2.txt", 512),
])
def test_the_process_in_the_name_of_a_file(name: str, pid: int | None) -> None:
    assert pid_in(name) == pid
