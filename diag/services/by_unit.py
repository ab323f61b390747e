"""By systemd unit: its main process as systemctl says - the container, where that is a client of docker -, else what is in its cgroup."""

import re
from itertools import pairwise

from diag import procfs
from diag.errors import BadInput, CollectorError
from diag.instruments import beside
from diag.services import by_container, control_groups
from diag.services.found import Found, all_of, past_wrappers, told

PATIENCE_S = 5.0
NAME = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*")
KINDS = (".service", ".scope", ".slice")


def find(unit: str) -> Found:
    """`vllm` is `vllm.service`. Raises BadInput: no such unit, or it does not run."""
    if not NAME.fullmatch(unit):
        raise BadInput(f"{unit!r} is no name of a unit", hint="for example --unit vllm.service")
    name = unit if unit.endswith(KINDS) else f"{unit}.service"
    facts, problem = _asked(name)
    main = int(facts.get("MainPID") or 0)
    if main and (container := _container(main, name)) is not None:
        return by_container.find(container)
    if main:
        return all_of(past_wrappers(main), f"main process of {name}")
    inside = control_groups.members(lambda part: name if part == name else None).get(name, [])
    if inside:
        tops = [pid for top in control_groups.topmost(inside) for pid in past_wrappers(top)]
        return all_of(tops, f"in the cgroup of {name}")
    raise BadInput(f"{name} has no process: {problem or _state(facts)}", hint=f"systemctl status {name}; or name the service by PID, --port, --name, --container")


def _container(main: int, unit: str) -> str | None:
    """Whose client the main process is: what it started is no child of it. Raises BadInput when it does not say. None: it is none."""
    words = procfs.argv(main)
    if not words or words[0].rpartition("/")[2] not in by_container.DOCKER_LIKE:
        return None
    named = [word for option, word in pairwise(words) if option == "--name"] + [word.removeprefix("--name=") for word in words if word.startswith("--name=")]
    if "start" in words:
        named.append(words[-1])
    if not named:
        raise BadInput(f"{unit} runs {told(main)}, which does not say how the container is called", hint=f"{words[0]} ps shows it: llmdiag snapshot --container NAME")
    return named[0]


def _asked(name: str) -> tuple[dict[str, str], str]:
    """What systemctl says, and why it says nothing ("" = it does)."""
    try:
        output = beside.gather(beside.start(("systemctl", "show", "-p", "LoadState,ActiveState,SubState,MainPID", "--", name), PATIENCE_S))
    except CollectorError as error:
        return {}, f"{error.message}, and no process is in a cgroup of that name"
    if output.code != 0:
        return {}, f"systemctl: {output.complaint}; no process is in a cgroup of that name"
    return dict(line.split("=", 1) for line in output.out.splitlines() if "=" in line), ""


def _state(facts: dict[str, str]) -> str:
    if facts.get("LoadState") == "not-found":
        return "there is no such unit"
    return f"it is {facts.get('ActiveState') or 'unknown'} ({facts.get('SubState') or 'unknown'})"
