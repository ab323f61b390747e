"""By container: its first process as docker, podman, nerdctl or crictl says, else what is in its cgroup. From the host."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from diag.errors import BadInput, CollectorError
from diag.instruments import beside
from diag.services import control_groups
from diag.services.found import Found, all_of, past_wrappers

PATIENCE_S = 5.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
ID = re.compile(r"[0-9a-f]{8,64}")
"""A beginning that is long enough not to be a word."""
IN_CGROUP = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
"""`<id>`, `docker-<id>.scope`, `cri-containerd-<id>.scope`, `system.slice:docker:<id>`, …"""
DOCKER_LIKE = ("docker", "podman", "nerdctl")


@dataclass(frozen=True)
class _Told:
    """What a client says: pid 0 = it does not run."""

    client: str
    id: str
    pid: int


def find(container: str) -> Found:
    """A name, an id, or the beginning of one. Raises BadInput: not known, several, not running, not seen from here."""
    if not NAME.fullmatch(container):
        raise BadInput(f"{container!r} is no name or id of a container", hint="docker ps, or crictl ps, shows them")
    told, complaints = _asked(container)
    if told:
        return _of_client(container, told[0])
    groups = control_groups.members(lambda part: _id_in(part, container)) if ID.fullmatch(container) else {}
    if len(groups) > 1:
        raise BadInput(f"{len(groups)} containers begin with {container}", hint=f"give more of the id: {', '.join(sorted(groups))}")
    if groups:
        ((name, pids),) = groups.items()
        return _inside(pids, f"in the cgroup of container {name[:12]}")
    raise BadInput(
        f"container {container} was not found: {'; '.join(complaints) or 'no docker, podman, nerdctl or crictl here'}; no cgroup has it in its name",
        hint="run llmdiag on the host; without a client for it only an id is found, not a name: docker ps --no-trunc, crictl ps --no-trunc",
    )


def _of_client(container: str, item: _Told) -> Found:
    if item.pid == 0:
        raise BadInput(f"container {container} does not run, says {item.client}", hint=f"{item.client} logs {container} > container.log; llmdiag analyze container.log")
    known = control_groups.members(lambda part: _id_in(part, item.id)).get(item.id, [])
    if item.pid not in known:  # of another machine, or of another PID namespace
        raise BadInput(f"{item.client} says that container {container} has pid {item.pid}, and that is another process here", hint="run llmdiag on the host of that container")
    return _inside([item.pid], f"first process of container {container}, says {item.client}")


def _inside(pids: list[int], says: str) -> Found:
    return all_of([pid for top in control_groups.topmost(pids) for pid in past_wrappers(top)], says)


def _id_in(part: str, beginning: str) -> str | None:
    found = IN_CGROUP.search(part)
    return found[1] if found is not None and found[1].startswith(beginning) else None


def _asked(container: str) -> tuple[list[_Told], list[str]]:
    """What the clients on PATH say of it, and what they complain about."""
    told: list[_Told] = []
    complaints: list[str] = []
    for client in filter(shutil.which, (*DOCKER_LIKE, "crictl")):
        try:
            told += _crictl(container) if client == "crictl" else _docker(client, container)
        except CollectorError as error:
            complaints.append(error.message)
    return told, complaints


def _docker(client: str, container: str) -> Iterator[_Told]:
    text = _said(client, "inspect", "--type", "container", "--format", "{{.Id}} {{.State.Pid}}", container)
    yield _told(client, *text.split())


def _crictl(container: str) -> Iterator[_Told]:
    """It knows ids only; names are listed."""
    ids = [container] if ID.fullmatch(container) else _said("crictl", "ps", "--quiet", "--no-trunc", "--name", f"^{re.escape(container)}$").split()
    if len(ids) > 1:
        raise BadInput(f"{len(ids)} containers are called {container}", hint=f"give an id: {', '.join(ids)}")
    for name in ids:
        text = _said("crictl", "inspect", "--output", "go-template", "--template", "{{.status.id}} {{.info.pid}}", name)
        yield _told("crictl", *text.split())


def _told(client: str, name: str = "", pid: str = "") -> _Told:
    if not pid.isdecimal():
        raise CollectorError(f"{client} gave an answer that is not understood")
    return _Told(client, name, int(pid))


def _said(*argv: str) -> str:
    output = beside.gather(beside.start(argv, PATIENCE_S))
    if output.code != 0:
        raise CollectorError(f"{argv[0]}: {output.complaint}")
    return output.out


