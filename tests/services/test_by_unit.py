"""By unit: what systemctl says (a script stands for it), else the real cgroup of the unit."""

import os
import sys
from pathlib import Path

import pytest

from diag.errors import BadInput
from diag.services import by_unit
from tests.services.people import child_of, client, in_group, listening, started

RESTS = "import time; print(1, flush=True); time.sleep(600)"
WRAPPED = f'"{sys.executable}" -c "import time; print(1, flush=True); time.sleep(600)"; true'


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def says(path: Path, **facts: object) -> None:
    """A systemctl that knows one unit and is asked for it in the way that it should be."""
    lines = "\n".join(f"{name}={value}" for name, value in facts.items())
    client(path, "systemctl", f'[ "$1 $5" = "show zugvogel.service" ] || {{ echo "asked: $*" >&2; exit 9; }}\ncat <<END\n{lines}\nEND')


def test_the_main_process_of_a_unit(path: Path) -> None:
    with listening() as person:
        says(path, LoadState="loaded", ActiveState="active", SubState="running", MainPID=person.pid)
        for name in ("zugvogel.service", "zugvogel"):
            found = by_unit.find(name)
            assert found.pids == (person.pid,), found
    assert found.says.startswith("main process of zugvogel.service: pid")


def test_what_a_shell_of_the_unit_runs_is_meant(path: Path) -> None:
    with started(["sh", "-c", WRAPPED]) as shell:
        says(path, LoadState="loaded", ActiveState="active", SubState="running", MainPID=shell.pid)
        assert by_unit.find("zugvogel").pids == (child_of(shell.pid),)


@pytest.mark.parametrize("words", [("run", "--rm", "--name", "zugvogel", "image"), ("run", "--name=zugvogel", "image"), ("start", "-a", "zugvogel")])
def test_a_unit_that_runs_a_client_of_docker_is_its_container(path: Path, words: tuple[str, ...]) -> None:
    with started(["docker", "-c", RESTS, *words], sys.executable) as main, listening() as inside, in_group(f"docker/{'7e' * 32}", inside.pid):
        says(path, LoadState="loaded", ActiveState="active", SubState="running", MainPID=main.pid)
        client(path, "docker", f"echo {'7e' * 32} {inside.pid}")
        found = by_unit.find("zugvogel")
    assert found.pids == (inside.pid,)
    assert found.says.startswith("first process of container zugvogel, says docker")


def test_a_client_of_docker_that_names_no_container(path: Path) -> None:
    with started(["docker", "-c", RESTS, "run", "image"], sys.executable) as main:
        says(path, LoadState="loaded", ActiveState="active", SubState="running", MainPID=main.pid)
        with pytest.raises(BadInput, match="does not say how the container is called"):
            by_unit.find("zugvogel")


@pytest.mark.parametrize("script", ["echo 'Failed to connect to bus' >&2; exit 1", "echo LoadState=loaded; echo ActiveState=active; echo MainPID=0"])
def test_its_cgroup_tells_where_systemctl_does_not(path: Path, script: str) -> None:
    client(path, "systemctl", script)
    with listening() as person, in_group("tests.slice/zugvogel.service/inner", person.pid):
        found = by_unit.find("zugvogel")
    assert found.pids == (person.pid,)
    assert found.says.startswith("in the cgroup of zugvogel.service")


def test_what_is_wrong_is_told(path: Path) -> None:
    says(path, LoadState="not-found", ActiveState="inactive", SubState="dead", MainPID=0)
    with pytest.raises(BadInput, match="there is no such unit"):
        by_unit.find("zugvogel")
    says(path, LoadState="loaded", ActiveState="failed", SubState="failed", MainPID=0)
    with pytest.raises(BadInput, match=r"it is failed \(failed\)"):
        by_unit.find("zugvogel")
    client(path, "systemctl", "echo 'Failed to connect to bus: Host is down' >&2; exit 1")
    with pytest.raises(BadInput, match="Host is down; no process is in a cgroup of that name"):
        by_unit.find("zugvogel")


@pytest.mark.parametrize("name", ["--all", "a b", "", "../x", "x;reboot"])
def test_what_is_no_name_reaches_nobody(path: Path, name: str) -> None:
    client(path, "systemctl", f"touch {path}/asked")
    with pytest.raises(BadInput, match="no name of a unit"):
        by_unit.find(name)
    assert not (path / "asked").exists()
