"""The stacks collector on real processes: parked, spinning, stopped, stuck, dead, foreign, forbidden."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from diag import procfs
from diag.bundle import Door, Writer
from diag.collectors import stacks
from diag.errors import Absent, Denied, Vanished
from diag.instruments import dumper, ptrace_guard, thread_ids
from diag.instruments.thread_heat import Heat
from diag.live import Locals, Options, Patient, Tick
from diag.redact import Redactor
from tests.collectors import harness, states
from tests.collectors.states import WORKLOADS, ZOMBIE, child, wait_until

KEY = "clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6"
SECRET = "sk-proj-9f8e7d6c5b4a39281706f5e4d3c2b1a0"

RETRY = f"""
import json, os, sys, threading, zlib
def fetch(cache_key):
    api_key = {SECRET!r}
    prompt = "tell me: a secret"
    raw = b"clip:bytes:1"
    digest = "9e107d9d372bb6826bd81d3542a419d6"
    name = "EngineCore"
    long_key = "clip:" + "x" * 300
    zlib.crc32(b"x" * 3000000)
def retry(key):
    while True:
        fetch(key)
thread = threading.Thread(target=retry, args=({KEY!r},), name="retry", daemon=True)
thread.start()
print(json.dumps({{"main": os.getpid(), "retry": thread.native_id}}), flush=True)
sys.stdin.read()
"""

CHURN = """
import json, os, sys, threading
def c(n): return n * 2
def b(n): return c(n) + c(n + 1)
def a():
    while True:
        b(3)
for _ in range(4):
    threading.Thread(target=a, daemon=True).start()
print(json.dumps({"main": os.getpid()}), flush=True)
sys.stdin.read()
"""

PARENT = """
import json, os, subprocess, sys
other = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(json.dumps({"main": os.getpid(), "other": other.pid}), flush=True)
sys.stdin.read()
"""


def outcomes(run: harness.Run, pid: int) -> set[object]:
    return {row["outcome"] for row in run.of("stack_dumps", pid=pid)}


def samples(run: harness.Run, pid: int) -> set[object]:
    return {row["sample"] for row in run.of("stack_frames", pid=pid)}


def test_parked_threads_are_read_and_not_disturbed(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        before = states.condition_of([it.pid])
        run = harness.run(stacks, it.pid, tmp_path, window_s=1.0)
        assert states.condition_of([it.pid]) == before
        started = procfs.started_at(it.pid)
    assert (run.error, run.notes) == (None, [])
    assert run.side_effects == {"pause_ms": 0}
    assert samples(run, it.pid) == {0, 1, 2, 3, 4}
    parked = run.of("stack_frames", tid=it.tids["parked"], sample=0)
    assert [row["func"] for row in parked][:3] == ["wait", "wait", "parked"]
    assert [row["depth"] for row in parked] == list(range(len(parked)))
    assert {row["whole"] for row in run.rows["stack_frames"]} == {True}
    assert {row["started_at"] for row in run.rows["stack_frames"]} == {started}
    assert "stack_locals" not in run.rows, "nobody is busy: no local variable is read"
    assert [(row["outcome"], row["tries"], row["blocking"]) for row in run.of("stack_dumps")] == [("ok", 1, False)] * 5


def test_key_of_a_spinning_thread_is_in_the_first_and_last_locals(tmp_path: Path) -> None:
    with child(RETRY) as it:
        run = harness.run(stacks, it.pid, tmp_path, window_s=2.0)
    assert (run.error, run.notes) == (None, [])
    held = run.of("stack_locals", repr=KEY)
    read = {row["sample"] for row in run.of("stack_dumps", locals=True)}
    assert len(read) == 2 and max(read) == 4
    assert {row["sample"] for row in held} == read
    assert {(row["tid"], row["thread"], row["is_text"], row["cut"]) for row in held} == {(it.tids["retry"], "retry", True, False)}
    assert {(row["func"], row["var"], row["is_arg"]) for row in held} >= {("retry", "key", True)}
    frames = {(row["sample"], row["tid"], row["depth"]): row["func"] for row in run.of("stack_frames")}
    assert all(frames[(row["sample"], row["tid"], row["depth"])] == row["func"] for row in run.of("stack_locals"))
    inner = {row["var"] for row in run.of("stack_locals", func="fetch")}
    assert inner <= {"cache_key", "digest", "long_key"}
    for forbidden in (SECRET.encode(), b"tell me", b"EngineCore", b"clip:bytes"):
        assert forbidden not in run.bytes()


def test_a_key_longer_than_one_line_of_py_spy_is_read_whole(tmp_path: Path) -> None:
    with child(RETRY) as it:
        run = harness.run(stacks, it.pid, tmp_path, window_s=1.5)
    found = {(row["repr"], row["cut"]) for row in run.of("stack_locals", var="long_key")}
    assert found == {("clip:" + "x" * 300, False)}


def test_locals_off_and_all(tmp_path: Path) -> None:
    with child(RETRY) as it:
        off = harness.run(stacks, it.pid, tmp_path, window_s=1.0, options=Options(locals=Locals.OFF))
        everything = harness.run(stacks, it.pid, tmp_path, window_s=1.5, options=Options(locals=Locals.ALL))
    assert "stack_locals" not in off.rows
    assert [(note.table_name, note.status) for note in off.notes] == [("stack_locals", "skipped")]
    values = {row["var"]: row["repr"] for row in everything.of("stack_locals", func="fetch")}
    assert values["name"] == "EngineCore" and str(values["raw"]).startswith("<bytes at")
    assert SECRET.encode() not in everything.bytes()


def test_a_churning_process_gives_whole_stacks(tmp_path: Path) -> None:
    with child(CHURN) as it:
        run = harness.run(stacks, it.pid, tmp_path, window_s=1.5)
    assert run.error is None
    assert len(samples(run, it.pid)) >= 3
    for row in run.of("stack_frames", whole=True):
        below = [other["func"] for other in run.of("stack_frames", sample=row["sample"], tid=row["tid"])]
        assert below[-1] in ("<module>", "_bootstrap")
    assert run.side_effects == {"pause_ms": 0}


def test_a_stopped_process_is_read_as_it_is_and_stays_stopped(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        states.stop(it.pid)
        run = harness.run(stacks, it.pid, tmp_path, options=Options(allow_pause=True))
        assert set(ptrace_guard.states(it.pid).values()) == {"T"}
    assert (run.error, run.notes, outcomes(run, it.pid)) == (None, [], {"ok"})
    assert run.of("stack_frames", tid=it.tids["parked"])
    assert "sigcont_sent" not in run.side_effects


def test_the_patient_dies_in_the_window(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        run = harness.run(stacks, it.pid, tmp_path, window_s=1.5, at_beat=lambda tick: _kill_at(tick, 3, it.pid))
    assert run.error is None
    assert run.of("stack_frames", sample=0)
    assert 4 not in samples(run, it.pid)
    assert [(note.table_name, note.status) for note in run.notes] == [("stack_frames", "partial")]
    assert str(it.pid) in run.notes[0].reason
    assert outcomes(run, it.pid) & {"ended", "zombie"}


def test_a_child_that_ends_in_the_window_is_no_gap(tmp_path: Path) -> None:
    with child(PARENT, sys.executable, "-c", "import sys; sys.stdin.read()") as it:
        other = it.tids["other"]
        wait_until(lambda: procfs.is_python(other))
        run = harness.run(stacks, it.pid, tmp_path, window_s=1.0, at_beat=lambda tick: _kill_at(tick, 2, other))
    assert (run.error, run.notes) == (None, [])
    assert samples(run, it.pid) == {0, 1, 2, 3, 4}
    assert outcomes(run, other) & {"ended", "zombie"}


def test_what_is_not_python_has_no_stacks_and_that_is_no_gap(tmp_path: Path) -> None:
    with child(PARENT, "sleep", "1000") as it:
        other = it.tids["other"]
        wait_until(lambda: procfs.stat(other).comm == "sleep")
        run = harness.run(stacks, it.pid, tmp_path)
        alone = harness.run(stacks, other, tmp_path, root=other)
    assert (run.error, run.notes) == (None, [])
    assert outcomes(run, other) == {"not python"}
    assert samples(run, it.pid) and not samples(run, other)
    assert (alone.error, alone.notes, set(alone.rows)) == (None, [], {"stack_dumps"})


def test_zombies(tmp_path: Path) -> None:
    with child(ZOMBIE) as it:
        dead = it.tids["zombie"]
        run = harness.run(stacks, it.pid, tmp_path)
        alone = harness.run(stacks, dead, tmp_path, root=dead, pids=[dead])
    assert (run.error, run.notes) == (None, [])
    assert outcomes(run, dead) == {"zombie"}
    assert samples(run, it.pid)
    assert isinstance(alone.error, Vanished)
    assert str(it.pid) in str(alone.error), "the parent that must collect it is named"


def test_a_process_that_was_never_there(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    run = harness.run(stacks, gone.pid, tmp_path, root=gone.pid, pids=[gone.pid])
    assert isinstance(run.error, Vanished)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody else")
def test_without_permission_the_remedy_is_named(tmp_path: Path) -> None:
    states.readable_by_all(tmp_path)
    with child(WORKLOADS, "parked") as it:
        run = states.as_nobody(lambda: harness.run(stacks, it.pid, tmp_path, root=it.pid, pids=[it.pid]))
    assert isinstance(run.error, Denied)
    assert "root" in run.error.hint
    assert [(note.table_name, note.status) for note in run.notes] == [("stack_frames", "partial")]
    assert outcomes(run, it.pid) == {"denied"}


def test_a_thread_in_state_d_is_read_and_never_stopped(tmp_path: Path) -> None:
    with child(WORKLOADS, "stuck", "parked") as it:
        states.wait_for_state(it.pid, it.tids["stuck"], "D")
        before = states.condition_of([it.pid])
        run = harness.run(stacks, it.pid, tmp_path, options=Options(allow_pause=True, native=True), pids=[it.pid])
        assert states.condition_of([it.pid]) == before
    assert run.error is None
    assert run.of("stack_frames", tid=it.tids["stuck"])
    assert run.side_effects["pause_ms"] == 0
    (note,) = run.notes
    assert note.table_name == "stack_frames.native" and "state D" in note.reason


def test_a_traced_process_is_read_and_never_stopped(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it, states.traced(it.pid):
        assert ptrace_guard.refusal(it.pid) is not None
        run = harness.run(stacks, it.pid, tmp_path, options=Options(allow_pause=True))
    assert (run.error, run.notes, outcomes(run, it.pid)) == (None, [], {"ok"})


def test_native_stacks_only_on_request_and_with_the_pause_on_record(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked") as it:
        before = states.condition_of([it.pid])
        refused = harness.run(stacks, it.pid, tmp_path, options=Options(native=True))
        allowed = harness.run(stacks, it.pid, tmp_path, options=Options(native=True, allow_pause=True))
        assert states.condition_of([it.pid]) == before
    assert [(note.table_name, note.status) for note in refused.notes] == [("stack_frames.native", "skipped")]
    assert refused.side_effects == {"pause_ms": 0} and not refused.of("stack_frames", native=True)
    assert allowed.notes == []
    assert float(str(allowed.side_effects["pause_ms"])) > 0
    assert {row["sample"] for row in allowed.of("stack_frames", native=True)} == {5}
    assert [row["sample"] for row in allowed.of("stack_dumps", blocking=True)] == [5]


@pytest.mark.skipif(not states.can_unshare(), reason="needs PID namespaces")
def test_a_process_in_a_container_has_the_thread_ids_of_the_host(tmp_path: Path) -> None:
    with child(WORKLOADS, "parked", "spin", before=("unshare", "--pid", "--fork", "--mount-proc")) as it:
        inner = next(pid for pid in procfs.tree(it.pid) if pid != it.pid)
        ids = {name: tid for tid in procfs.tids(inner) for name, ns in it.tids.items() if procfs.status(inner, tid)["NSpid"].endswith(f"\t{ns}")}
        run = harness.run(stacks, inner, tmp_path, window_s=1.0, root=inner)
    assert (run.error, run.notes) == (None, [])
    assert {row["tid"] for row in run.of("stack_frames")} == set(ids.values())
    parked = run.of("stack_frames", tid=ids["parked"], depth=0)
    assert {row["active"] for row in parked} == {False}, "py-spy calls every thread there active"
    assert {row["func"] for row in run.of("stack_frames", tid=ids["spin"])} >= {"spin"}


def test_threads_of_old_pythons_are_found_by_what_the_c_library_remembers() -> None:
    assert thread_ids.of_pthread(os.getpid(), threading.get_ident()) == threading.get_native_id()
    assert thread_ids.of_pthread(os.getpid(), 8) is None
    assert thread_ids.by_inner_id(os.getpid())[os.getpid()] == os.getpid()
    assert not thread_ids.in_other_namespace(os.getpid())


def test_stopped_in_the_middle_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with child(CHURN) as it:
        writer = Writer(tmp_path / "bundle", Redactor(), {}, {})
        door = Door(writer, "stacks", stacks.BUDGET_BYTES)
        before = _open_things()
        generator = stacks.collect(Patient(it.pid, it.pid, [it.pid], Options(), lambda table: ()), door)
        next(generator)
        generator.send(Tick(0, 0, False))
        wait_until(lambda: len(_open_things()[1]) > len(before[1]), 5.0)
        generator.close()
        assert _open_things() == before
    writer.close(tmp_path / "bundle.zip")
    assert [artefact.name for artefact in door.artefacts][-1] == "dumps.jsonl", "what there is is kept"


def test_busy_processes_are_told_from_idle_ones() -> None:
    with child(WORKLOADS, "parked") as idle, child(WORKLOADS, "spin") as busy, child(WORKLOADS, "poll") as polling:
        heats = [Heat(it.pid) for it in (idle, busy, polling)]
        for heat in heats:
            heat.look()
        wait_until(lambda: heats[1].look() and heats[2].look())
        assert not heats[0].look()
    assert not Heat(idle.pid).look(), "a process that has ended is not busy"


def test_what_a_tool_left_stopped_is_let_go_and_nothing_else() -> None:
    with child(WORKLOADS, "parked") as it:
        known, before = procfs.identity(it.pid), ptrace_guard.states(it.pid)
        assert ptrace_guard.refusal(it.pid) is None
        assert ptrace_guard.repair(known, before) is None
        states.stop(it.pid)
        assert "stopped" in str(ptrace_guard.refusal(it.pid))
        assert ptrace_guard.repair(known, ptrace_guard.states(it.pid)) is None, "it was stopped before: somebody wants it so"
        assert ptrace_guard.repair(replace_start(known), before) is None, "another life of this pid"
        done = ptrace_guard.repair(known, before)
        assert done is not None and f"pid {it.pid}" in done
        wait_until(lambda: "T" not in ptrace_guard.states(it.pid).values())


def replace_start(known: procfs.Identity) -> procfs.Identity:
    return known._replace(start_ticks=known.start_ticks + 1)


def test_py_spy_missing_says_how_to_get_it(tmp_path: Path) -> None:
    code = "from diag.instruments import dumper\ntry: dumper.executable()\nexcept Exception as e: print(type(e).__name__, e.hint)"
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    env = {"PATH": str(tmp_path), "PYTHONPATH": str(Path(stacks.__file__).parents[2])}
    said = subprocess.run([base, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert said.startswith(Absent.__name__) and "pip install py-spy" in said
    assert Path(dumper.executable()).is_file()
    broken = tmp_path / "py-spy"
    broken.write_text("not a program")
    broken.chmod(0o700)
    with pytest.raises(Absent, match="cannot be run"):
        dumper.version(str(broken))


def test_a_tool_that_hangs_is_killed_and_large_output_is_read_whole() -> None:
    sleeper = shutil.which("sleep") or "sleep"
    hung = dumper.run((sleeper, "1000"), 0.1, threading.Event())
    assert hung.code is None
    stop = threading.Event()
    stop.set()
    assert dumper.run((sleeper, "1000"), 60.0, stop).code is None
    large = dumper.run((sys.executable, "-c", "import sys; print('x' * 3_000_000); print('y', file=sys.stderr); sys.exit(3)"), 30.0, threading.Event())
    assert (large.code, len(large.output), large.error) == (3, 3_000_001, "y\n")


def test_artefacts_are_compact_and_carry_their_own_number_and_time(tmp_path: Path) -> None:
    begun = time.time()
    with child(WORKLOADS, "parked") as it:
        run = harness.run(stacks, it.pid, tmp_path)
    names = [artefact.name for artefact in run.artefacts]
    assert names[0] == f"{it.pid}-00.json" or names[0].startswith(f"{it.pid}-")
    import json

    artefact = json.loads(run.artefacts[0].bytes())
    assert (artefact["artefact"], artefact["tool"], artefact["pid"]) == ("stacks", "py-spy", it.pid)
    assert begun <= artefact["ts"] <= time.time()
    assert all(_no_nulls(thread) for thread in artefact["threads"])
    assert stacks.recognise("x.json", run.artefacts[0].bytes()[:200]) and stacks.recognise("dumps.jsonl", run.artefacts[-1].bytes()[:200])


def _no_nulls(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_no_nulls, value.values()))
    return all(map(_no_nulls, value)) if isinstance(value, list) else value is not None


def _kill_at(tick: Tick, number: int, pid: int) -> None:
    if tick.number == number:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _is_dead(pid))


def _is_dead(pid: int) -> bool:
    try:
        return procfs.stat(pid).state == "Z"
    except Vanished:
        return True


def _open_things() -> tuple[set[str], set[str], set[int]]:
    """Descriptors, threads and children of this process."""
    children = set(_children(os.getpid()))
    descriptors = {link.name for link in Path("/proc/self/fd").iterdir()}
    return descriptors, {thread.name for thread in threading.enumerate()}, children


def _children(pid: int) -> Iterator[int]:
    for other in procfs.pids():
        try:
            if procfs.stat(other).ppid == pid:
                yield other
        except Vanished:
            continue
