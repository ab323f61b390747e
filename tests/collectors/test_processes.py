"""The processes collector on real trees: states, roles, secrets, deaths in the window; and saved ps output."""

import os
import signal
import sys
from pathlib import Path

import pytest

from diag import procfs
from diag.collectors import processes
from diag.errors import Garbled, Vanished
from diag.model import Artefact
from tests.collectors import harness, states
from tests.test_procfs import service

PS_SAMPLE = """  PID  PPID STAT %CPU   RSS ELAPSED COMMAND
29677     1 Sl    9.8 632380    199 /opt/venv/bin/python3 /opt/venv/bin/vllm serve /models/tiny --host 127.0.0.1
30338 29677 S     0.0 12768     137 /opt/venv/bin/python3 -B -c from multiprocessing.resource_tracker import main;main(32)
30339 29677 Sl   22.0 594212    137 VLLM::EngineCore
30484 30339 Tl   49.3 1711632   121 VLLM::Worker
"""


def test_one_row_per_process_and_read(tmp_path: Path) -> None:
    with service("", "VLLM::EngineCore", "VLLM::Worker") as patient:  # type: ignore[attr-defined]
        worker = patient.tids["VLLM::Worker"]
        found = harness.run(processes, worker, tmp_path)
        assert (found.error, list(found.notes)) == (None, [])
        rows = found.rows["processes"]
        assert [(row["read"], row["pid"]) for row in rows] == [(read, pid) for read in (0, 1) for pid in procfs.tree(patient.pid)]
        assert [row["role"] for row in rows[:3]] == ["other", "engine_core", "worker"]
        assert [row["is_target"] for row in rows[:3]] == [False, False, True]
        last = found.of("processes", pid=worker, read=1)[0]
        assert last["cmd"] == "VLLM::Worker"
        assert last["ppid"] == patient.tids["VLLM::EngineCore"]
        assert last["started_at"] == procfs.started_at(worker)
        assert (last["uid"], last["tracer_pid"], last["ns_pid"], last["threads"]) == (os.getuid(), 0, worker, 1)
        assert last["is_python"] is True
        assert last["exe"] == procfs.exe(worker)
        assert int(str(last["rss_bytes"])) > 1 << 20
        assert 0 <= float(str(last["age_s"])) < 3600
        assert last["state"] in {"S", "R"}


def test_every_row_can_be_shown_raw(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS) as patient:
        found = harness.run(processes, patient.pid, tmp_path)
        (row,) = found.of("processes", read=1)
        path, _, line = str(row["source"]).rpartition(":")
        artefact = next(item for item in found.artefacts if item.path == path)
        assert f'"pid":{patient.pid}' in dict(artefact.lines())[int(line)]


def test_states_that_matter_are_in_the_rows_and_nothing_changes(tmp_path: Path) -> None:
    with states.child(states.ZOMBIE) as patient:
        found = harness.run(processes, patient.pid, tmp_path)
        zombie = found.of("processes", pid=patient.tids["zombie"], read=1)[0]
        assert (zombie["state"], zombie["ppid"], zombie["exe"], zombie["is_python"]) == ("Z", patient.pid, None, None)
        assert str(zombie["cmd"]).startswith("[")
    with states.child(states.WORKLOADS, "parked") as patient:
        states.stop(patient.pid)
        before = states.condition_of([patient.pid])
        assert {row["state"] for row in harness.run(processes, patient.pid, tmp_path).rows["processes"]} == {"T"}
        assert states.condition_of([patient.pid]) == before
    with states.child(states.WORKLOADS, "parked") as patient, states.traced(patient.pid):
        rows = harness.run(processes, patient.pid, tmp_path).rows["processes"]
        assert {(row["state"], row["tracer_pid"]) for row in rows} == {("t", os.getpid())}
    with states.child(states.WORKLOADS, "stuck") as patient:
        states.wait_for_state(patient.pid, patient.tids["stuck"], "D")
        before = states.condition_of(procfs.tree(patient.pid))
        assert harness.run(processes, patient.pid, tmp_path).error is None
        assert states.condition_of(procfs.tree(patient.pid)) == before


def test_a_worker_that_dies_in_the_window_is_dead_or_gone_at_the_second_read(tmp_path: Path) -> None:
    with service("", "VLLM::EngineCore", "VLLM::Worker") as patient:  # type: ignore[attr-defined]
        worker = patient.tids["VLLM::Worker"]

        def kill(tick: harness.Tick) -> None:
            if tick.number == 1:
                os.kill(worker, signal.SIGKILL)
                states.wait_until(lambda: procfs.stat(worker).state == "Z")

        found = harness.run(processes, patient.pid, tmp_path, at_beat=kill)
        before, after = found.of("processes", pid=worker)
        assert (before["state"], after["state"]) in {("S", "Z"), ("R", "Z")}
        assert after["cmd"] == "VLLM::Worker", "a zombie keeps the name it had while it lived"
        assert after["role"] == "worker"
        assert before["started_at"] == after["started_at"]


def test_a_patient_that_ends_in_the_window_is_gone(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS) as patient:

        def kill(tick: harness.Tick) -> None:
            if tick.number == 1:
                patient.process.kill()
                patient.process.wait()

        found = harness.run(processes, patient.pid, tmp_path, at_beat=kill)
        assert found.error is None
        before, after = found.of("processes", pid=patient.pid)
        assert after["state"] == "X"
        assert (after["started_at"], after["cmd"], after["ppid"]) == (before["started_at"], before["cmd"], before["ppid"])


def test_a_patient_that_was_gone_before_is_an_error_with_a_name(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS) as patient:
        pass
    found = harness.run(processes, patient.pid, tmp_path, root=patient.pid, pids=[patient.pid])
    assert isinstance(found.error, Vanished)


def test_a_process_that_is_started_meanwhile_is_in_the_second_read(tmp_path: Path) -> None:
    code = "import json, os, subprocess, sys\nprint(json.dumps({'main': os.getpid()}), flush=True); sys.stdin.readline()\n"
    code += "c = subprocess.Popen(['sleep', '1000']); print(c.pid, flush=True); sys.stdin.read()"
    with states.child(code) as patient:
        born: list[int] = []

        def bear(tick: harness.Tick) -> None:
            if tick.number == 1:
                assert patient.process.stdin is not None
                assert patient.process.stdout is not None
                patient.process.stdin.write("\n")
                patient.process.stdin.flush()
                born.append(int(patient.process.stdout.readline()))
                states.wait_until(lambda: procfs.stat(born[0]).comm == "sleep")

        found = harness.run(processes, patient.pid, tmp_path, at_beat=bear)
        rows = found.of("processes", pid=born[0])
        assert [(row["read"], row["is_python"], row["cmd"]) for row in rows] == [(1, False, "sleep 1000")]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_without_permission_the_rest_still_arrives(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS) as patient:
        states.readable_by_all(tmp_path)
        found = states.as_nobody(lambda: harness.run(processes, patient.pid, tmp_path))
        assert found.error is None
        (row,) = found.of("processes", read=1)
        assert (row["exe"], row["state"], row["uid"]) == (None, "S", 0)
        assert row["is_python"] is True, "its command line says so"
        (note,) = found.notes
        assert (note.table_name, note.status) == ("processes.exe", "failed")
        assert "CAP_SYS_PTRACE" in note.reason
        assert b'"unread"' in found.bytes()


@pytest.mark.skipif(not states.can_unshare(), reason="PID namespaces may not be made here")
def test_a_container_shows_both_pids(tmp_path: Path) -> None:
    with states.child(states.WORKLOADS, before=["unshare", "--pid", "--fork"]) as patient:
        (outside,) = [pid for pid in procfs.tree(patient.pid) if pid != patient.pid]
        (row,) = harness.run(processes, outside, tmp_path).of("processes", read=1)
        assert (row["pid"], row["ns_pid"], row["is_target"]) == (outside, 1, True)


def test_secrets_of_arguments_and_environment_stay_out(tmp_path: Path) -> None:
    secret = "hunter2hunter2hunter2"
    env = {**os.environ, "REDIS_PASSWORD": secret, "VLLM_API_KEY": secret, "VLLM_USE_V1": "1"}
    code = states.WORKLOADS.replace("sys.argv[1:]", "[]")
    with states.child(code, "--api-key", secret, f"redis://:{secret}@10.0.0.5:6379/0", env=env) as patient:
        found = harness.run(processes, patient.pid, tmp_path)
        assert secret.encode() not in found.bytes()
        assert "--api-key" in str(found.rows["processes"][0]["cmd"])


@pytest.mark.parametrize(("command", "role"), [
    ("VLLM::EngineCore", "engine_core"), ("VLLM::EngineCore_DP0", "engine_core"), ("mine::EngineCore_DP1", "engine_core"),
    ("VLLM::Worker", "worker"), ("VLLM::Worker_DP0_PP0_TP0_EP0", "worker"), ("ATOM::TP0", "worker"), ("VllmWorkerProcess", "worker"),
    ("ray::RayWorkerWrapper.execute_method", "worker"), ("VLLM::APIServer_0", "api_server"), ("VLLM::DPCoordinator", "manager"),
    ("/opt/venv/bin/python3 /opt/venv/bin/vllm serve /models/tiny", "api_server"), ("vllm serve x", "api_server"),
    ("python -m vllm.entrypoints.openai.api_server --model x", "api_server"),
    ("python3 -m vllm.entrypoints.cli.main serve x", "api_server"),
    ("python3 -B -c from multiprocessing.resource_tracker import main;main(32)", "other"),
    ("sglang::scheduler_TP0", "scheduler"), ("sglang::scheduler_DP0_TP1", "scheduler"), ("sglang::detokenizer", "detokenizer"),
    ("sglang::data_parallel_controller", "manager"), ("sglang::http_server/multi_tokenizer_router", "api_server"),
    ("python3 -m sglang.launch_server --model-path x", "api_server"), ("sglang serve --model-path x", "api_server"),
    ("/usr/bin/redis-server *:6379", "cache_server"), ("valkey-server 127.0.0.1:0", "cache_server"), ("redis-cli ping", "other"),
    ("python -m dynamo.frontend --http-port 8000", "router"), ("python3 -m dynamo.vllm --model x", "worker"),
    ("python3 -m dynamo.router", "router"), ("lmcache_server localhost 65432", "cache_server"),
    ("python3 -m lmcache.v1.server 0.0.0.0 65432", "cache_server"), ("mooncake_master --port 50051", "cache_server"),
    ("./bin/mindieservice_daemon", "api_server"), ("mindie_llm_backend_connector --rank 0", "worker"),
    ("torchrun --nproc-per-node 8 serve.py", "manager"), ("python -m torch.distributed.run x.py", "manager"),
    ("python -m uvicorn app:app --port 1", "api_server"), ("gunicorn: master [app:app]", "api_server"), ("gunicorn: worker [app:app]", "worker"),
    ("text-generation-launcher --model-id x", "manager"), ("text-generation-router --port 80", "router"),
    ("python /opt/ops/watchdog.py --restart 'vllm serve x'", "watchdog"), ("nginx: worker process", "router"),
    ("python lab.py --cache redis-server", "other"), ("bash -c vllm serve x", "other"), ("vim vllm.txt", "other"), ("", "other"),
])
def test_roles_from_titles(command: str, role: str) -> None:
    assert processes.role(command) == role


@pytest.mark.parametrize(("comm", "role"), [("VLLM::EngineCor", "engine_core"), ("sglang::schedul", "scheduler"), ("sglang::detoken", "detokenizer")])
def test_roles_from_kernel_names_that_were_cut(comm: str, role: str) -> None:
    assert processes.role("", comm) == role


def test_unnamed_children_of_a_server_are_its_workers() -> None:
    text = (
        "PID PPID STAT COMMAND\n10 1 S python -m uvicorn app:app --workers 2\n"
        "11 10 S python -B -c from multiprocessing.resource_tracker import main;main(5)\n"
        "12 10 R python -B -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7) --multiprocessing-fork\n"
        "20 1 S gunicorn app:app\n21 20 S gunicorn app:app\n22 21 S sleep 1\n"
    )
    rows = harness.parse(processes, {"ps.txt": text})["processes"]
    assert [row["role"] for row in rows] == ["api_server", "other", "worker", "api_server", "worker", "other"]


def test_saved_ps_with_any_list() -> None:
    rows = harness.parse(processes, {"worker-stopped/ps.txt": PS_SAMPLE})["processes"]
    assert [(row["pid"], row["ppid"], row["role"], row["state"]) for row in rows] == [
        (29677, 1, "api_server", "S"), (30338, 29677, "other", "S"), (30339, 29677, "engine_core", "S"), (30484, 30339, "worker", "T"),
    ]
    assert (rows[3]["rss_bytes"], rows[3]["age_s"], rows[3]["source"]) == (1711632 << 10, 121.0, "worker-stopped/ps.txt:5")
    assert {row.get("ts") for row in rows} == {None}


@pytest.mark.parametrize(("text", "expected"), [
    ("USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\n"
     "root        4242  0.0  0.1  49680 18384 ?        Zs   Nov30   0:07 [python3] <defunct>\n",
     (4242, None, "Z", "[python3] <defunct>")),
    ("UID          PID    PPID  C STIME TTY          TIME CMD\nroot        4242       7  0 06:03 ?        00:00:07 vllm serve a  b\n",
     (4242, 7, None, "vllm serve a b")),
    ("F S   UID     PID    PPID  C PRI  NI ADDR SZ WCHAN  TTY          TIME CMD\n0 T     0    4242       7  0  80   0 -  1234 do_sig pts/0    00:00:00 x\n",
     (4242, 7, "T", "x")),
    ("  PID                  STARTED S COMMAND\n 4242 Mon Nov 30 06:03:01 2026 S vllm serve m\n", (4242, None, "S", "vllm serve m")),
    ("COMMAND                       PID S\nvllm serve a b               4242 R\n", (4242, None, "R", "vllm serve a b")),
    ("  PID COMMAND\n 4242  \\_ vllm serve\n", (4242, None, None, "vllm serve")),
    ("PID   USER     TIME  COMMAND\n 4242 root      0:00 vllm serve\n", (4242, None, None, "vllm serve")),
    ("  PID   LWP S CMD\n 4242  4242 S vllm serve\n 4242  4243 R vllm serve\n", (4242, None, "S", "vllm serve")),
    ("  PID  PPID S COMMAND\n    2     0 S [kthreadd]\n    9     2 I [kworker/0:1]\n 4242     1 S vllm serve\n", (4242, 1, "S", "vllm serve")),
])
def test_saved_ps_of_every_kind(text: str, expected: tuple[object, ...]) -> None:
    (row,) = harness.parse(processes, {"p": text})["processes"]
    assert (row["pid"], row["ppid"], row["state"], row["cmd"]) == expected


@pytest.mark.parametrize(("elapsed", "seconds"), [("157", 157.0), ("02:37", 157.0), ("01:02:03", 3723.0), ("2-01:00:00", 176400.0), ("-", None)])
def test_elapsed_times(elapsed: str, seconds: float | None) -> None:
    (row,) = harness.parse(processes, {"p": f"PID ELAPSED COMMAND\n1 {elapsed} x\n"})["processes"]
    assert row["age_s"] == seconds


@pytest.mark.parametrize("options", [["aux"], ["-ef"], ["-eo", "pid,ppid,stat,pcpu,rss,etimes,args"], ["-eo", "args,pid,s"], ["-elf"], ["axjf"], ["-eLf"],
                                     ["-eo", "pid,lstart,user,nlwp,wchan:20,cmd"]])
def test_real_ps_is_read_with_any_options(options: list[str]) -> None:
    ps = harness.tool("ps")
    with states.child(states.WORKLOADS, "parked", "parked") as patient:
        text = harness.output(ps, "ww", *options) if not options[0].startswith("-") else harness.output(ps, *options, "-ww")
        rows = [row for row in harness.parse(processes, {"ps.txt": text})["processes"] if row["pid"] == patient.pid]
        (row,) = rows
        assert sys.executable[:20] in str(row["cmd"])  # a column in the middle is cut at 27 characters
        if row["state"] is not None:
            assert row["state"] in {"S", "R"}


@pytest.mark.parametrize(("name", "text"), [
    ("top.txt", "top - 02:41:10 up\n  PID USER  PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND\n  1 root 20 0 1 1 1 S 0 0 0:00.01 init\n"),
    ("threads1.txt", "29677 29677 vllm S 1580 211 do_epoll_wait\n"),
    ("lsof.txt", "COMMAND   PID USER   FD   TYPE DEVICE SIZE/OFF NODE NAME\nvllm 1 root cwd DIR 8,1 1 2 /\n"),
    ("nvidia-smi.txt", "|  GPU   GI   CI        PID   Type   Process name   GPU Memory |\n"),
    ("server.log", "INFO PID COMMAND\n"),
    ("docker.txt", "CONTAINER ID   IMAGE   COMMAND   CREATED   STATUS\nabc x y z w\n"),
    ("metrics1.txt", "# HELP PID COMMAND\n"),
    ("empty", ""),
])
def test_other_files_are_not_claimed(name: str, text: str) -> None:
    assert not processes.recognise(name, text.encode())


def test_a_garbled_artefact_is_an_error_with_a_name() -> None:
    artefact = Artefact.of_bytes("processes/processes-0.jsonl", "processes", b'{"artefact":"processes","read":"x"}\n')
    with pytest.raises(Garbled, match=r"processes/processes-0\.jsonl"):
        list(processes.parse([artefact]))
