"""`llmdiag doctor`: what is so on this machine, and what is said where a right is really missing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag import doctor
from diag.doctor import Ground, stacks
from diag.labs import start_server
from tests.conftest import ROOT
from tests.live.run import llmdiag
from tests.services.people import client, started
from tests.terminals import seen

SCHEMA = json.loads(resources.files("diag.report").joinpath("doctor.schema.json").read_text(encoding="utf-8"))
RESTS = "import time; print(1, flush=True); time.sleep(600)"
as_somebody_else = pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to give up rights")


def checks(*args: str, **env: str) -> dict[str, dict[str, Any]]:
    """JSON that its schema knows, by name; the exit code tells whether something is missing."""
    said = llmdiag("doctor", *args, "-f", "json", **env)
    jsonschema.validate(said.json, SCHEMA)
    found = {check["name"]: check for check in said.json["checks"]}
    assert len(found) == len(said.json["checks"]), "two checks have one name"
    assert said.code == (1 if any(check["ok"] is False for check in found.values()) else 0), said
    return found


def without(rights: list[str], *args: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        ["setpriv", *rights, sys.executable, "-m", "diag.cli", "doctor", *args, "-f", "json"], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_all_that_is_promised_is_looked_at() -> None:
    found = checks()
    assert list(found)[:4] == ["llmdiag", "ptrace", "py-spy", "stacks"]
    assert {"syscall", "stack", "memory", "schedstat", "cgroup", "kernel log", "journal", "redis", "numba", "torch", "disk", "clock", "boot time"} <= set(found)
    assert f"Python {'.'.join(map(str, sys.version_info[:3]))}" in found["llmdiag"]["says"]
    assert all(check["fix"] for check in found.values() if check["ok"] is False), "who says what is missing says what to do"


def test_stacks_are_really_read_and_the_python_of_the_target_is_told() -> None:
    with started([sys.executable, "-c", RESTS]) as service:
        found = checks(str(service.pid))
    assert found["stacks"]["ok"] is True, found["stacks"]
    assert found["stacks"]["says"].startswith(f"read from pid {service.pid}, Python {'.'.join(map(str, sys.version_info[:3]))}")
    assert re.search(r"reads up to Python 3\.\d+", found["py-spy"]["says"]), found["py-spy"]


def test_a_service_that_is_no_python() -> None:
    with started(["sleep", "600"], hears=False) as service:
        assert checks(str(service.pid))["stacks"]["ok"] is None


def test_nobody_is_stopped_by_it() -> None:
    with started([sys.executable, "-c", RESTS]) as service:
        os.kill(service.pid, signal.SIGSTOP)
        found = checks(str(service.pid))
        state = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert (found["stacks"]["ok"], state) == (True, "T")


@as_somebody_else
def test_a_missing_capability_is_named_with_what_gives_it() -> None:
    with started([sys.executable, "-c", RESTS]) as service:
        found = without(["--bounding-set", "-sys_ptrace,-syslog,-sys_admin", "--inh-caps", "-sys_ptrace,-syslog,-sys_admin"], str(service.pid))
    assert (found["stacks"]["ok"], found["syscall"]["ok"], found["memory"]["ok"]) == (False, False, False), found
    assert "without CAP_SYS_PTRACE" in found["ptrace"]["says"]
    for name in ("stacks", "syscall", "memory"):
        assert "--cap-add SYS_PTRACE" in found[name]["fix"], found[name]
    assert "--cap-add SYS_ADMIN" in found["stack"]["fix"]
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "1":
        assert found["kernel log"]["ok"] is False
        assert "without CAP_SYSLOG" in found["kernel log"]["says"]
        assert "sudo dmesg -T > dmesg.txt" in found["kernel log"]["fix"]


def test_a_tool_that_hangs_is_bounded_and_one_that_answers_counts(tmp_path: Path) -> None:
    client(tmp_path, "nvidia-smi", "exec sleep 600")
    client(tmp_path, "rocm-smi", "echo 'no driver' >&2; exit 2")
    client(tmp_path, "npu-smi", "echo 'NPU 0'")
    found = checks(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert found["nvidia-smi"]["ok"] is False
    assert "did not answer in 5 s: the driver may be wedged" in found["nvidia-smi"]["says"]
    assert (found["rocm-smi"]["ok"], found["rocm-smi"]["says"]) == (False, "exit code 2: no driver")
    assert found["npu-smi"]["ok"] is True


def test_the_cache_server_answers_or_does_not_and_its_password_is_nowhere(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        found = checks(LLMDIAG_REDIS_URL=f"redis://127.0.0.1:{server.port}/0")
        assert found["redis"]["ok"] is True
        assert found["redis"]["says"].startswith(f"redis://127.0.0.1:{server.port} answers: ")
        wrong = llmdiag("doctor", "-f", "json", LLMDIAG_REDIS_URL=f"redis://me:sup3r-canary@127.0.0.1:{server.port}/0")
    gone = llmdiag("doctor", "-f", "json", LLMDIAG_REDIS_URL="redis://me:sup3r-canary@127.0.0.1:9/0")
    for said in (wrong, gone):
        (redis,) = [check for check in said.json["checks"] if check["name"] == "redis"]
        assert (redis["ok"], said.code) == (False, 1)
        assert "canary" not in said.out + said.err


@as_somebody_else
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(tmp_path)], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        said = llmdiag("doctor", "-f", "json", cwd=tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    (disk,) = [check for check in said.json["checks"] if check["name"] == "disk"]
    assert (disk["ok"], said.code) == (False, 1)
    assert "Read-only file system" in disk["says"]
    assert "-o /tmp" in disk["fix"]


def test_one_screen_of_eighty_columns() -> None:
    lines = seen("doctor").splitlines()
    assert max(len(line) for line in lines if not line.startswith("     fix: ")) <= 80, lines
    tags = [line[:4] for line in lines if line.startswith("[")]
    assert set(tags) <= {"[ok]", "[!!]", "[--]"}
    assert len(tags) == len(checks())


def test_a_terminal_that_knows_ascii_only() -> None:
    said = llmdiag("doctor", LC_ALL="C", PYTHONIOENCODING="ascii", LLMDIAG_REDIS_URL="redis://127.0.0.1:9/0")
    assert said.code == 1
    assert said.out.isascii()
    assert "\\u" not in said.out


def test_usage() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    said = llmdiag("doctor", str(child.pid))
    assert (said.code, said.out) == (2, "")
    assert f"there is no process {child.pid}" in said.err
    assert llmdiag("doctor", "0").code == 2


def test_a_check_dropped_in_is_found() -> None:
    """Every module with a check is one; their places on the screen differ."""
    found, broken = doctor.checkers()
    orders = [module.ORDER for module in found]
    assert (orders, broken) == (sorted(set(orders)), [])
    names = {file.stem for file in Path(str(doctor.__file__)).parent.glob("*.py")} - {"__init__", "ground"}
    assert {getattr(module, "__name__", "").rpartition(".")[2] for module in found} == names


def test_a_library_that_is_not_there_is_told_and_the_rest_looked_at(tmp_path: Path) -> None:
    (tmp_path / "broken_one.py").write_text("import a_library_that_is_not_there\n")
    (tmp_path / "sound.py").write_text(
        "from diag.doctor import Check\nORDER = 5\ndef check(ground):\n    yield Check('sound', True, f'{ground.whose} lives')\n"
    )
    sound, broken = doctor.run(None, tmp_path, extra=tmp_path)
    assert (sound.name, sound.ok, sound.says) == ("sound", True, "an own child lives")
    assert (broken.name, broken.ok, "a_library_that_is_not_there" in broken.says) == ("broken one", False, True)


def test_a_py_spy_that_is_too_old_names_the_newer_one(tmp_path: Path) -> None:
    """A program that fails with the words of an old py-spy stands for one."""
    client(tmp_path, "old-py-spy", "echo 'Error: Unsupported version of Python: 3.99.0' >&2; exit 1")
    with started([sys.executable, "-c", RESTS]) as service:
        check = stacks._tried(str(tmp_path / "old-py-spy"), Ground(service.pid, service.pid, tmp_path))
    assert (check.ok, "pip install -U py-spy" in check.fix) == (False, True), check
