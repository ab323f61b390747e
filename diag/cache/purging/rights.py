"""What this user may do on this server, found out without doing any of it.

Commands are queued between MULTI and DISCARD: the server checks name, rights, keys and its own role for each of them
as it takes it in, and then forgets them all.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, cast

import redis
from redis.exceptions import AskError, TryAgainError

from diag.cache.servers.connection import Client

Argument = str | bytes | int
Command = tuple[Argument, ...]
Right = Literal["yes", "denied", "unknown", "read-only", "full", "no"]
"""denied: this user may not; unknown: the server has no such command; read-only: a replica; full: it may, but there is no
memory for what writes (a queued command is refused then whatever it does); no: another refusal."""
Answer = tuple[Right, str]
"""And what the server said."""

BEFORE = ("WATCH",)
"""Not allowed inside a transaction, but without an effect that outlives it."""


def probe(client: Client, commands: Sequence[Command]) -> list[Answer] | None:
    """What the server would say to each command. None: this user may queue nothing, so nothing is known.

    Raises the client library's connection errors.
    """
    with own_connection(client) as alone:
        before = [_ask(alone, command) if command[0] in BEFORE else None for command in commands]
        if _ask(alone, ("MULTI",))[0] != "yes":
            return None
        try:
            return [_ask(alone, command) if early is None else early for command, early in zip(commands, before, strict=True)]
        finally:
            _ask(alone, ("DISCARD",))


def known_commands(client: Client, names: Iterable[str]) -> frozenset[str] | None:
    """Which of these commands the server has, by COMMAND INFO; None: it may not be asked."""
    asked = list(names)
    with own_connection(client) as alone:
        try:
            answer = raw(alone, ("COMMAND", "INFO", *asked))
        except redis.ResponseError:
            return None
    return frozenset(name for name, facts in zip(asked, cast(list[object], answer), strict=True) if facts)


def user_name(client: Client) -> str:
    """Who this connection is for the server, as far as it says."""
    try:
        with own_connection(client) as alone:
            said = raw(alone, ("ACL", "WHOAMI"))
            return said.decode(errors="backslashreplace") if isinstance(said, bytes) else "default"
    except redis.ResponseError:
        return str(client.connection_pool.connection_kwargs.get("username") or "default")


def own_connection(client: Client) -> Client:
    """The same client with one connection to itself; close it to give that back."""
    return cast(Client, client.client())  # type: ignore[no-untyped-call]


def raw(alone: Client, command: Command) -> object:
    """The server's own answer, not the client library's reading of it. `alone` has one connection to itself."""
    connection = alone.connection
    if connection is None:
        alone.ping()
        connection = alone.connection
    assert connection is not None
    connection.send_command(*command)  # type: ignore[no-untyped-call]
    return cast(object, connection.read_response())


def _ask(alone: Client, command: Command) -> Answer:
    try:
        raw(alone, command)
    except redis.ReadOnlyError as error:
        return "read-only", str(error)
    except (AskError, TryAgainError):  # another node of the cluster has the key now; rights are checked before that
        return "yes", ""
    except redis.exceptions.NoPermissionError as error:
        return "denied", str(error)
    except redis.ResponseError as error:
        return _kind(str(error)), str(error)
    return "yes", ""


def _kind(text: str) -> Right:
    if "no permissions" in text.lower() or text.startswith("NOPERM"):
        return "denied"
    if text.startswith(("MOVED ", "ASK ")):
        return "yes"  # rights are looked at before slots
    if text.startswith("OOM") or "maxmemory" in text:
        return "full"
    if "unknown command" in text.lower() or "unknown subcommand" in text.lower():
        return "unknown"
    return "no"
