"""By container: what docker or crictl say (scripts stand for them) is believed where the cgroup agrees; else the real cgroup alone."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from diag import procfs
from diag.errors import BadInput
from diag.services import by_container
from tests.services.people import child_of, client, in_group, listening, started

ID, OTHER = "5c" * 32, "5c5c5c5c" + "d7" * 28
WRAPPED = f'"{sys.executable}" -c "import time; print(1, flush=True); time.sleep(600)"; true'
DOCKER = '[ "$*" = "inspect --type container --format {{{{.Id}}}} {{{{.State.Pid}}}} zugvogel" ] || {{ echo "asked: $*" >&2; exit 9; }}\necho {id} {pid}'


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only clients are those that a test puts there; sh and echo stay."""
    for tool in ("sh", "echo", "sleep"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_name_that_docker_knows(path: Path) -> None:
    with listening() as person, in_group(f"docker/{ID}", person.pid):
        client(path, "docker", DOCKER.format(id=ID, pid=person.pid))
        found = by_container.find("zugvogel")
    assert found.pids == (person.pid,)
    assert found.says.startswith("first process of container zugvogel, says docker: pid")


def test_a_pid_of_another_machine_is_not_believed(path: Path) -> None:
    with listening() as person:
        client(path, "docker", DOCKER.format(id=ID, pid=person.pid))
        with pytest.raises(BadInput, match="is another process here"):
            by_container.find("zugvogel")


def test_a_container_that_does_not_run(path: Path) -> None:
    client(path, "podman", DOCKER.format(id=ID, pid=0))
    with pytest.raises(BadInput, match="does not run, says podman") as caught:
        by_container.find("zugvogel")
    assert "podman logs zugvogel" in caught.value.hint


def test_crictl_is_asked_for_the_id_of_a_name(path: Path) -> None:
    with listening() as person, in_group(f"kubepods.slice/cri-containerd-{ID}.scope", person.pid):
        client(path, "crictl", f'case "$1 $5" in "ps ^zugvogel$") echo {ID};; "inspect {{{{.status.id}}}} {{{{.info.pid}}}}") echo {ID} {person.pid};; *) echo "asked: $*" >&2; exit 9;; esac')
        assert by_container.find("zugvogel").pids == (person.pid,)


@pytest.mark.parametrize("group", [f"docker/{ID}", f"kubepods.slice/pod1.slice/cri-containerd-{ID}.scope", f"machine.slice/libpod-{ID}.scope/container"])
def test_without_a_client_the_cgroup_tells(path: Path, group: str) -> None:
    with started(["/bin/sh", "-c", WRAPPED]) as first:
        server = child_of(first.pid)
        with in_group(group, first.pid, server):
            assert by_container.find(ID[:12]).pids == (server,)


def test_all_services_of_a_container_are_meant(path: Path) -> None:
    script = f'"{sys.executable}" -c "import time; time.sleep(600)" & {WRAPPED}'
    with started(["/bin/sh", "-c", script]) as first:
        servers = [pid for pid in procfs.tree(first.pid) if pid != first.pid]
        with in_group(f"docker/{ID}", first.pid, *servers):
            found = by_container.find(ID)
    assert (len(servers), set(found.pids)) == (2, set(servers)), found


def test_a_beginning_of_two_ids_is_not_enough(path: Path) -> None:
    with listening() as one, listening() as two, in_group(f"docker/{ID}", one.pid), in_group(f"docker/{OTHER}", two.pid):
        with pytest.raises(BadInput, match="2 containers begin with 5c5c5c5c") as caught:
            by_container.find("5c5c5c5c")
        assert by_container.find(OTHER[:10]).pids == (two.pid,)
    assert OTHER in caught.value.hint


def test_what_every_client_said_is_told(path: Path) -> None:
    client(path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    client(path, "podman", "echo nonsense")
    with pytest.raises(BadInput) as caught:
        by_container.find("zugvogel")
    assert "docker: Cannot connect to the Docker daemon; podman gave an answer that is not understood" in caught.value.message
    for name in ("--help", "a b", "", "../x"):
        with pytest.raises(BadInput, match="no name or id"):
            by_container.find(name)
    assert os.environ["PATH"] == str(path)
