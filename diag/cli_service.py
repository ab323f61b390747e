"""The options that say which service is meant, by what a person knows of it, and what they stand for."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from diag.errors import BadInput

if TYPE_CHECKING:
    from diag.services.found import Found

WAYS = "PID..., --port, --name, --unit or --container"


def pid(text: str) -> int:
    """The number of a process. Whoever types a name learns the option for it. Raises click.BadParameter."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise click.BadParameter(f"{text!r} is not a pid" + ("" if text.isdecimal() else f"; by name: --name {shlex.quote(text)}"))


def options(command: Any) -> Any:
    """PID..., --port, --name, --unit, --container."""
    for decorate in (
        click.option("--container", metavar="ID", help="The container of that name or id, seen from its host."),
        click.option("--unit", metavar="UNIT", help="The systemd unit of that name."),
        click.option("--name", metavar="NAME", help="The only service with NAME in its process name or command line."),
        click.option("--port", "ports", multiple=True, type=click.IntRange(1, 65535), metavar="PORT", help="The service that listens there; with another way to name it: its HTTP port (found by itself otherwise)."),
        click.argument("pids", nargs=-1, type=pid, metavar="[PID]..."),
    ):
        command = decorate(command)
    return command


def resolver(pids: Sequence[int], asked: Mapping[str, Any]) -> "Callable[[], Found]":
    """What finds the service, now or again later. Raises click.UsageError unless it is named in exactly one way."""
    given = {"PID": pids, **{f"--{name}": asked[name] for name in ("name", "unit", "container")}}
    ways = [name for name, value in given.items() if value not in (None, ())]
    if len(ways) > 1:
        raise click.UsageError(f"{' and '.join(ways)}: name the service in one way")
    if not ways and not asked["ports"]:
        raise click.UsageError(f"which service? Name it: {WAYS}")
    return lambda: _found(ways[0] if ways else "--port", pids, asked)


def _found(way: str, pids: Sequence[int], asked: Mapping[str, Any]) -> "Found":
    from diag import procfs
    from diag.services import by_container, by_name, by_port, by_unit, found

    if way == "PID":
        existing = tuple(dict.fromkeys(map(procfs.existing, pids)))
        return found.Found(existing, "; ".join(map(found.told, existing)))
    if way == "--name":
        return by_name.find(asked["name"])
    if way == "--unit":
        return by_unit.find(asked["unit"])
    if way == "--container":
        return by_container.find(asked["container"])
    if len(asked["ports"]) > 1:
        raise BadInput("several ports name no one service", hint="give one --port, or PID with the ports: llmdiag snapshot PID --port A --port B")
    return by_port.find(asked["ports"][0])
