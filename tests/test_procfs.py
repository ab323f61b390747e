"""Read-only /proc access on real processes: stat lines, start times, roots and trees, permissions."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag import procfs
from diag.errors import BadInput, CollectorError, Denied, Garbled, Vanished
from tests.collectors import states

TITLE = """
import ctypes, ctypes.util, json, os, sys, subprocess
def title(text):
    # what setproctitle does: write over the arguments
    start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[45])
    end = int(open("/proc/self/stat").read().rpartition(")")[2].split()[46])
    ctypes.memmove(start, text.encode().ljust(end - start - 1, b"\\0"), end - start - 1)
    ctypes.CDLL(None).prctl(15, text.encode()[:15], 0, 0, 0)
"""

SERVICE = TITLE + """
names = sys.argv[1].split(",")
below = {}
if len(names) > 1:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2], ",".join(names[1:]), sys.argv[2], "x" * 60], stdin=-1, stdout=-1, text=True)
    below = json.loads(child.stdout.readline())
if names[0]:
    title(names[0])
print(json.dumps({names[0]: os.getpid(), **below}), flush=True)
sys.stdin.read()
"""
"""A chain of processes, each with its title: `python -c SERVICE a,b,c SERVICE padding`."""


def service(*titles: str) -> object:
    return states.child(SERVICE, ",".join(titles), SERVICE, "x" * 60)


@pytest.mark.parametrize("comm", ["plain", "two words", "odd) S (name", "tmux: server", "(sd-pam)", "line\nend", ")", ""])
def test_a_stat_line_is_read_whatever_the_name(comm: str) -> None:
    rest = "S 7 8 9 0 -1 4194560 1 2 3 4 155 25 0 0 20 0 31 0 4711 1000000 2048 18446744073709551615"
    found = procfs.parse_stat(f"4242 ({comm}) {rest}")
    assert found == procfs.Stat(4242, comm, "S", 7, 9, 155, 25, 31, 4711, 2048)


@pytest.mark.parametrize("text", ["", "1 (a) S", "x (a) S 1 2 3", "nonsense", "1 (a S 1 1 1"])
def test_what_is_no_stat_line_is_an_error_with_a_name(text: str) -> None:
    with pytest.raises(Garbled):
        procfs.parse_stat(text)


def test_stat_of_a_real_process_with_an_odd_name() -> None:
    code = TITLE + 'ctypes.CDLL(None).prctl(15, b"a) R (b c", 0, 0, 0); print(json.dumps({"main": os.getpid()}), flush=True); sys.stdin.read()'
    with states.child(code) as patient:
        found = procfs.stat(patient.pid)
        assert (found.comm, found.ppid) == ("a) R (b c", os.getpid())
        assert found.state in "SR"


def test_own_process_agrees_with_python() -> None:
    found = procfs.stat(os.getpid())
    assert (found.pid, found.ppid) == (os.getpid(), os.getppid())
    assert found.threads == len(procfs.tids(os.getpid()))
    assert procfs.argv(os.getpid())[0] == sys.orig_argv[0]
    assert procfs.exe(os.getpid()) == str(Path(sys.executable).resolve())
    assert procfs.is_python(os.getpid())
    assert procfs.environ(os.getpid()).keys() <= {*os.environ, *procfs.environ(os.getpid())}


def test_start_time_is_now_for_a_new_process() -> None:
    before = time.time()
    with states.child(states.WORKLOADS) as patient:
        started = (procfs.started_at(patient.pid) - procfs.utc(0)).total_seconds()
        # btime has whole seconds: it may be one off
        assert before - 1.1 <= started <= time.time() + 1.1


def test_an_ended_process_is_not_the_one_that_was_known() -> None:
    with states.child(states.WORKLOADS) as patient:
        known = procfs.identity(patient.pid)
        assert procfs.is_same(known)
        assert not procfs.is_same(known._replace(start_ticks=known.start_ticks - 1))
    assert not procfs.is_same(known)


@pytest.mark.parametrize("function", [
    procfs.stat, procfs.status, procfs.argv, procfs.environ, procfs.exe, procfs.tids, procfs.started_at, procfs.identity, procfs.leader,
    procfs.is_python, procfs.service_root, procfs.tree, lambda pid: procfs.memory(pid, 0, 8),
])
def test_a_process_that_is_gone_is_vanished(function: object) -> None:
    with states.child(states.WORKLOADS) as patient:
        pass
    with pytest.raises(Vanished):
        function(patient.pid)  # type: ignore[operator]


def test_a_zombie_has_a_state_but_no_executable() -> None:
    with states.child(states.ZOMBIE) as patient:
        zombie = patient.tids["zombie"]
        assert procfs.stat(zombie).state == "Z"
        assert procfs.argv(zombie) == []
        with pytest.raises(Vanished):
            procfs.exe(zombie)
        assert zombie in procfs.tree(patient.pid)


def test_what_another_user_may_not_see_is_denied() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    with states.child(states.WORKLOADS) as patient:
        for function in (procfs.environ, procfs.exe, lambda pid: procfs.memory(pid, 0, 8)):
            with pytest.raises(Denied) as caught:
                states.as_nobody(lambda function=function: function(patient.pid))  # type: ignore[misc]
            assert "root" in caught.value.hint
        assert states.as_nobody(lambda: procfs.stat(patient.pid)).pid == patient.pid


def test_memory_is_read_beside_the_process() -> None:
    code = "import ctypes, json, os, sys; b = ctypes.create_string_buffer(b'marker!!')\n"
    code += "print(json.dumps({'main': os.getpid(), 'at': ctypes.addressof(b)}), flush=True); sys.stdin.read()"
    with states.child(code) as patient:
        before = states.condition_of([patient.pid])
        assert procfs.memory(patient.pid, patient.tids["at"], 8) == b"marker!!"
        assert procfs.memory(patient.pid, 16, 8) == b""
        assert procfs.memory(patient.pid, 1 << 65, 8) == b""
        assert states.condition_of([patient.pid]) == before


@pytest.mark.parametrize(("command", "expected"), [
    ("/opt/venv/bin/python3 /opt/venv/bin/vllm serve /m --port 1", "vllm serve /m --port 1"),
    ("python3 -B -c from multiprocessing.resource_tracker import main;main(32)", "-c from multiprocessing.resource_tracker import main;main(32)"),
    ("python -X dev -u -m vllm.entrypoints.openai.api_server --m x", "vllm.entrypoints.openai.api_server --m x"),
    ("python3.11 ./lab.py --x", "lab.py --x"),
    ("VLLM::EngineCore_DP0", "VLLM::EngineCore_DP0"),
    ("sglang::http_server/multi_tokenizer_router", "sglang::http_server/multi_tokenizer_router"),
    ("/usr/bin/redis-server *:6379", "redis-server *:6379"),
    ("gunicorn: master [app:app]", "gunicorn: master [app:app]"),
    ("/usr/bin/python3", "python3"),
    ("", ""),
])
def test_the_program_of_a_command_line(command: str, expected: str) -> None:
    assert procfs.program(command.split()) == expected


def test_a_plain_process_is_its_own_root() -> None:
    with states.child(states.WORKLOADS, "parked") as patient:
        assert procfs.service_root(patient.pid) == patient.pid
        assert procfs.service_root(patient.tids["parked"]) == patient.pid, "a thread id is taken for its process"


@pytest.mark.parametrize("titles", [
    ("", "VLLM::EngineCore", "VLLM::Worker_TP0"),
    ("", "sglang::scheduler_TP0"),
    ("VLLM::APIServer_0", "VLLM::EngineCore_DP0", "VLLM::Worker_DP0_TP0", "VLLM::Worker_DP0_TP1"),
])
def test_from_a_worker_up_to_the_one_that_answers(titles: tuple[str, ...]) -> None:
    with service(*titles) as patient:  # type: ignore[attr-defined]
        family = [patient.tids[title] for title in titles]
        assert family[0] == patient.pid
        assert [procfs.service_root(pid) for pid in family] == [patient.pid] * len(family)
        assert procfs.tree(patient.pid) == family, "parents come before children"
        assert procfs.tree(family[-1]) == family[-1:]


def test_a_dead_worker_still_has_its_root() -> None:
    with service("", "VLLM::EngineCore", "VLLM::Worker") as patient:  # type: ignore[attr-defined]
        worker = patient.tids["VLLM::Worker"]
        os.kill(worker, signal.SIGKILL)
        states.wait_until(lambda: procfs.stat(worker).state == "Z")
        assert procfs.service_root(worker) == patient.pid


def test_an_orphan_is_its_own_root() -> None:
    with service("", "VLLM::EngineCore", "VLLM::Worker") as patient:  # type: ignore[attr-defined]
        core = patient.tids["VLLM::EngineCore"]
        try:
            os.kill(patient.pid, signal.SIGKILL)
            patient.process.wait()
            states.wait_until(lambda: procfs.stat(core).ppid != patient.pid)
            states.wait_until(lambda: procfs.service_root(patient.tids["VLLM::Worker"]) == core)  # its title may be a moment late
        finally:
            for pid in procfs.tree(core):
                os.kill(pid, signal.SIGKILL)


def test_multiprocessing_children_belong_to_who_made_them() -> None:
    code = (
        "import json, multiprocessing, os, sys, time\n"
        "def work(): time.sleep(1000)\n"
        "if __name__ == '__main__':\n"
        "    made = {}\n"
        "    for how in ('fork', 'spawn'):\n"
        "        made[how] = multiprocessing.get_context(how).Process(target=time.sleep, args=(1000,)); made[how].start()\n"
        "    print(json.dumps({'main': os.getpid(), **{how: p.pid for how, p in made.items()}}), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with states.child(code) as patient:
        states.wait_until(lambda: "spawn_main" in " ".join(procfs.argv(patient.tids["spawn"])))
        for how in ("fork", "spawn"):
            assert procfs.service_root(patient.tids[how]) == patient.pid, how
        assert set(procfs.tree(patient.pid)) >= set(patient.tids.values())


def test_a_shell_and_a_supervisor_are_no_part_of_the_service() -> None:
    script = 'true; "$@"; true'
    with states.child(states.WORKLOADS, before=["sh", "-c", script, "sh"]) as patient:
        inner = patient.tids["main"]
        assert procfs.stat(inner).ppid == patient.pid
        assert procfs.service_root(inner) == inner


def test_a_helper_that_a_program_runs_is_its_own_root() -> None:
    code = (
        "import json, os, subprocess, sys\n"
        "c = subprocess.Popen(['sleep', '1000'])\n"
        "print(json.dumps({'main': os.getpid(), 'helper': c.pid}), flush=True); sys.stdin.read()"
    )
    with states.child(code) as patient:
        states.wait_until(lambda: procfs.stat(patient.tids["helper"]).comm == "sleep")
        assert procfs.service_root(patient.tids["helper"]) == patient.tids["helper"]
        assert not procfs.is_python(patient.tids["helper"])
        assert procfs.tree(patient.pid) == [patient.pid, patient.tids["helper"]]


def test_llmdiag_leaves_itself_out() -> None:
    assert os.getpid() not in procfs.tree(os.getppid())


def test_a_pid_that_never_was() -> None:
    with pytest.raises(CollectorError, match="no process 4194304"):
        procfs.service_root(1 << 22)


def test_a_file_longer_than_one_read_comes_whole() -> None:
    padding = "x" * 100_000
    with subprocess.Popen([sys.executable, "-c", "input()", padding], stdin=subprocess.PIPE) as process:
        try:
            states.wait_until(lambda: padding in procfs.argv(process.pid))
            assert len(procfs.read(f"/proc/{process.pid}/cmdline", 1000)) == 1000
        finally:
            process.kill()


def test_a_kernel_thread_is_no_service() -> None:
    kernel = [int(path.name) for path in Path("/proc").glob("[0-9]*") if (path / "status").exists() and procfs.is_kernel_thread(int(path.name))]
    if not kernel:
        pytest.skip("this PID namespace shows no kernel threads")
    assert os.getpid() not in kernel
    with pytest.raises(BadInput, match="kernel thread"):
        procfs.service_root(kernel[0])
