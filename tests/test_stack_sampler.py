"""Retries, torn stacks, pauses and hanging dumps: with stand-ins for py-spy that fail on command."""

import json
import stat
import sys
import time
from pathlib import Path

import pytest

from diag import procfs
from diag.instruments.stack_sampler import TRIES, Sampler, Taken
from diag.live import Locals
from tests.collectors import states
from tests.collectors.states import WORKLOADS, child, wait_until

PROGRAM = """#!{python} -IS
import json, pathlib, sys, time
log = pathlib.Path(__file__).with_suffix(".log")
with log.open("a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
call = len(log.read_text().splitlines()) - 1
pid = int(sys.argv[-1])
def dump(*entries):
    thread = lambda number, entry: dict(
        pid=pid, thread_id=number, thread_name=None, os_thread_id=pid, active=False, owns_gil=False,
        frames=[dict(name=name, filename="/srv/a.py", line=call) for name in ("leaf", *([entry] if entry else []))])
    print(json.dumps([thread(number, entry) for number, entry in enumerate(entries)]))
def fail(words):
    sys.exit(words)
{body}
"""


def stand_in(folder: Path, body: str) -> Path:
    program = folder / "py-spy"
    program.write_text(PROGRAM.format(python=sys.executable, body=body))
    program.chmod(stat.S_IRWXU)
    return program


def calls(program: Path) -> list[list[str]]:
    return [json.loads(line) for line in program.with_suffix(".log").read_text().splitlines()]


def one_sample(folder: Path, body: str, pid: int, *, allow_pause: bool = False) -> tuple[Taken, Sampler]:
    sampler = Sampler(str(stand_in(folder, body)), [procfs.identity(pid)], Locals.KEYS, allow_pause=allow_pause)
    try:
        sampler.ask(0, last=False)
        assert sampler.wait(time.monotonic() + 20)
    finally:
        sampler.close()
    (taken,) = sampler.results()
    return taken, sampler


def test_a_dump_that_failed_because_the_process_moved_is_tried_again(tmp_path: Path) -> None:
    body = 'fail("Error: Failed to copy\\n\\nCaused by:\\n 3: Bad address (os error 14)") if call < 2 else dump("<module>")'
    with child(WORKLOADS, "parked") as it:
        taken, _ = one_sample(tmp_path, body, it.pid)
    assert (taken.failure, taken.tries, taken.torn, taken.blocking) == (None, 3, 0, False)
    assert taken.threads[0].frames[0].line == 2
    assert all("--nonblocking" in call for call in calls(tmp_path / "py-spy"))


def test_it_gives_up_in_the_end_and_says_so(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        taken, _ = one_sample(tmp_path, 'fail("Error: Bad address (os error 14)")', it.pid)
    assert taken.failure is not None
    assert (taken.failure.kind, taken.tries, list(taken.threads)) == ("torn", TRIES, [])


@pytest.mark.parametrize("words", ["Permission Denied: Try running again", "Error: Failed to find python version from target process"])
def test_what_will_not_heal_is_not_tried_again(tmp_path: Path, words: str) -> None:
    with child(WORKLOADS, "parked") as it:
        taken, _ = one_sample(tmp_path, f"fail({words!r})", it.pid)
    assert taken.failure is not None and taken.tries == 1


def test_a_whole_stack_is_kept_while_a_torn_one_is_tried_again(tmp_path: Path) -> None:
    body = 'dump("<module>" if call == 0 else f"torn{call}", f"torn{call}" if call < 3 else "_bootstrap")'
    with child(WORKLOADS, "parked") as it:
        taken, _ = one_sample(tmp_path, body, it.pid)
    assert (taken.failure, taken.tries, taken.torn) == (None, 4, 0)
    assert [(thread.frames[-1].name, thread.frames[-1].line) for thread in taken.threads] == [("<module>", 0), ("_bootstrap", 3)]


def test_a_stack_that_is_torn_in_every_try_is_marked(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        taken, sampler = one_sample(tmp_path, 'dump("<module>", f"torn{call}")', it.pid)
    assert (taken.tries, taken.torn, [thread.torn for thread in taken.threads]) == (TRIES, 1, [False, True])
    assert sampler.pauses.empty()


def test_an_entry_of_its_own_is_accepted_when_seen_twice(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        taken, _ = one_sample(tmp_path, 'dump("on_event", "")', it.pid)
    assert (taken.tries, taken.torn) == (2, 0)


def test_a_thread_that_was_once_seen_whole_is_torn_whenever_it_ends_elsewhere(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        sampler = Sampler(str(stand_in(tmp_path, 'dump("<module>" if call == 0 else "g")')), [procfs.identity(it.pid)], Locals.KEYS)
        try:
            for sample in (0, 1):
                sampler.ask(sample, last=False)
                assert sampler.wait(time.monotonic() + 20)
        finally:
            sampler.close()
        first, second = sampler.results()
    assert (first.torn, second.torn, second.tries) == (0, 1, TRIES)


def test_with_permission_a_torn_stack_is_read_once_with_a_pause(tmp_path: Path) -> None:
    body = 'dump(f"torn{call}" if "--nonblocking" in sys.argv else "_bootstrap")'
    with child(WORKLOADS, "parked") as it:
        taken, sampler = one_sample(tmp_path, body, it.pid, allow_pause=True)
        pause = sampler.pauses.get_nowait()
        assert pause.process == procfs.identity(it.pid)
        assert set(pause.states) == set(procfs.tids(it.pid))
    assert (taken.failure, taken.torn, taken.blocking, taken.tries) == (None, 0, True, TRIES + 1)
    assert pause.seconds > 0
    assert [call for call in calls(tmp_path / "py-spy") if "--nonblocking" not in call] == [["dump", "--json", "--pid", str(it.pid)]]


def test_a_stopped_process_is_not_dumped_with_a_pause_even_when_allowed(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        states.stop(it.pid)
        taken, sampler = one_sample(tmp_path, 'dump(f"torn{call}")', it.pid, allow_pause=True)
    assert (taken.torn, taken.blocking, sampler.pauses.empty()) == (1, False, True)
    assert all("--nonblocking" in call for call in calls(tmp_path / "py-spy"))


def test_output_that_is_no_dump_is_tried_again(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        taken, _ = one_sample(tmp_path, 'print("[{") if call == 0 else dump("<module>")', it.pid)
    assert (taken.failure, taken.tries) == (None, 2)


def test_a_dump_that_hangs_loses_its_sample_and_is_killed(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "time.sleep(1000)")
    with child(WORKLOADS, "parked") as it:
        sampler = Sampler(str(program), [procfs.identity(it.pid)], Locals.KEYS)
        try:
            sampler.ask(0, last=False)
            wait_until(lambda: program.with_suffix(".log").exists())
            sampler.ask(1, last=False)
            sampler.ask(2, last=True)
            assert not sampler.wait(time.monotonic() + 0.1)
        finally:
            sampler.close()
        found = {taken.sample: taken.failure and taken.failure.kind for taken in sampler.results()}
    assert found == {0: "timeout", 1: "behind"}
    assert not [pid for pid in procfs.pids() if _runs(pid, str(program))]


def test_a_tool_that_cannot_be_started_is_a_failure_not_a_crash(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        sampler = Sampler(str(tmp_path / "missing"), [procfs.identity(it.pid)], Locals.KEYS)
        try:
            sampler.ask(0, last=True)
            assert sampler.wait(time.monotonic() + 20)
        finally:
            sampler.close()
        (taken,) = sampler.results()
    assert taken.failure is not None and "cannot be started" in taken.failure.reason


def test_never_more_than_two_at_a_time(tmp_path: Path) -> None:
    body = """
mine = pathlib.Path(__file__).with_name(f"running-{pid}")
mine.touch()
running = len(list(pathlib.Path(__file__).parent.glob("running-*")))
with pathlib.Path(__file__).with_name("most").open("a") as stream:
    stream.write(f"{running}\\n")
time.sleep(0.05)
mine.unlink()
dump("<module>")
"""
    program = stand_in(tmp_path, body.replace("{", "{{").replace("}", "}}").replace("{{running}}", "{running}").replace("{{pid}}", "{pid}"))
    with child(WORKLOADS) as one, child(WORKLOADS) as two, child(WORKLOADS) as three, child(WORKLOADS) as four:
        sampler = Sampler(str(program), [procfs.identity(it.pid) for it in (one, two, three, four)], Locals.OFF)
        try:
            sampler.ask(0, last=False)
            assert sampler.wait(time.monotonic() + 20)
        finally:
            sampler.close()
    assert [taken.failure for taken in sampler.results()] == [None] * 4
    assert max(map(int, (tmp_path / "most").read_text().split())) <= 2


def _runs(pid: int, program: str) -> bool:
    try:
        return program in procfs.argv(pid)
    except procfs.Vanished:
        return False
