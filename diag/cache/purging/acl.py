"""The rights that scan, purge and restore need: as lines for ACL SETUSER, and checked before anything starts."""

from collections.abc import Mapping, Sequence

from diag.cache.purging.deleting import Means, Verb, Way
from diag.cache.purging.rights import Answer, Command, Right, known_commands, probe, user_name
from diag.cache.servers.connection import Client, Elsewhere, nodes
from diag.errors import Denied, LlmdiagError

CONNECT = ("ping", "select", "client|setname", "client|setinfo", "client|no-touch", "info")
TRY = ("multi", "discard")
"""To see beforehand what is allowed."""
CLUSTER = ("cluster|slots", "cluster|nodes", "asking")
SERVICE = ("role", "wait")
"""Of the primary behind Sentinels: is it one, and has a replica what was written?"""
SCAN = (
    "scan", "type", "strlen", "getrange", "get", "mget", "pttl", "object|idletime", "exists", "hlen", "hgetall", "memory|usage", "dump",
)  # fmt: skip
PURGE = (*SCAN, *TRY, "pexpiretime", "eval", "unlink")
RESTORE = (*TRY, "time", "get", "set", "exists", "type", "restore")
USES: Mapping[str, Sequence[str]] = {"scan": (*CONNECT, *SCAN, *TRY), "purge": (*CONNECT, *PURGE), "restore": (*CONNECT, *RESTORE)}
SINCE_7 = "pexpiretime"
"""Servers that know it also know subcommands by name, and patterns for reading only."""
TOO_NEW_FOR_6 = ("client|setinfo", "client|no-touch")


def lines(client: Client, pattern: str = "*") -> dict[str, str]:
    """The least that a user for scan, purge or restore needs on this server: ACL SETUSER lines by use. Denied: it may not be asked."""
    further = CLUSTER if len(nodes(client)) > 1 else SERVICE if isinstance(client, Elsewhere) else ()
    names = sorted({name for uses in USES.values() for name in uses} | {SINCE_7, *further})
    known = known_commands(client, names)
    if known is None:
        raise Denied("this user may not ask the server for its commands (COMMAND INFO)", hint="--print-acl wants an administrator's address")
    recent = SINCE_7 in known
    found: dict[str, str] = {}
    for use, least in USES.items():
        wanted = (*least, *further)
        granted = [name for name in wanted if name in known or (not recent and "|" in name and name not in TOO_NEW_FOR_6)]
        if use == "purge" and not recent:
            granted.append("time")
        keys = f"%R~{pattern}" if use == "scan" and recent else f"~{pattern}"
        found[use] = " ".join(
            [f"ACL SETUSER llmdiag-{use} reset on >PASSWORD {_quoted(keys)} -@all", *(f"+{name}" for name in dict.fromkeys(granted))]
        )
    return found


def _quoted(word: str) -> str:
    """As redis-cli reads it."""
    if not any(character in word for character in " \"'\\"):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def may_scan(client: Client, target: str) -> None:
    """Denied: a command that every scan needs is not this user's. Which keys it may read is seen when they are read."""
    key = b"llmdiag"  # whether it may be read is another matter
    commands: list[Command] = [
        ("SCAN", 0, "COUNT", 1), ("TYPE", key), ("STRLEN", key), ("PTTL", key), ("GET", key), ("MGET", key), ("GETRANGE", key, 0, 0),
    ]  # fmt: skip
    for node in nodes(client):
        answers = probe(node, commands) or ()
        _refuse(client, target, commands[: len(answers)], [answer if _is_about_command(answer) else ("yes", "") for answer in answers])


def may_restore(client: Client, target: str, key: bytes) -> None:
    """Denied: a command that a restore needs is not this user's, or the server takes no writes."""
    commands: list[Command] = [("TIME",), ("EXISTS", key), ("GET", key), ("SET", key, "", "NX", "PXAT", 1)]
    for node in nodes(client):
        answers = probe(node, commands) or ()
        if any(right == "full" for right, _ in answers):
            raise LlmdiagError(f"{target} takes no SET now: its memory is full (maxmemory)", hint="nothing was changed; make room there first")
        _refuse(client, target, commands[: len(answers)], answers)


def means(client: Client, target: str, keys: Sequence[bytes], *, dumped: bool, use_del: bool) -> Means:
    """How these keys can be compared and deleted here. Denied: not at all, or a right is missing. LlmdiagError: no writes now.

    `keys`: one of each kind that may have rights of its own. Without the right to queue commands nothing is known
    beforehand: then the first batch tells.
    """
    verb: Verb = "DEL" if use_del else "UNLINK"
    found = Means(verb=verb)
    for key in keys:
        answers = _for_key(client, key, verb)
        if answers is None:
            return found
        reading = ["GET", "PTTL", *(["DUMP", "TYPE"] if dumped else [])]
        _refuse(client, target, [(name,) for name in (*reading, verb)], [answers[name] for name in (*reading, verb)])
        found = Means(_way(client, target, answers), verb)
    return found


def _for_key(client: Client, key: bytes, verb: Verb) -> dict[str, Answer] | None:
    commands: list[Command] = [
        ("GET", key), ("PTTL", key), ("DUMP", key), ("TYPE", key), (verb, key), ("EVAL", "return 0", 1, key), ("DELIFEQ", key, ""),
        ("DELEX", key, "IFEQ", ""), ("WATCH", key),
    ]  # fmt: skip
    answers = probe(client, commands)
    return None if answers is None else {str(command[0]): answer for command, answer in zip(commands, answers, strict=True)}


def _way(client: Client, target: str, answers: Mapping[str, Answer]) -> Way:
    ways: tuple[tuple[Way, str], ...] = (("script", "EVAL"), ("delifeq", "DELIFEQ"), ("delex", "DELEX"), ("watch", "WATCH"))
    for way, command in ways:
        if answers[command][0] in ("yes", "full"):  # a delete needs no memory
            return way
    raise Denied(
        f"{target}: this user may compare and delete in no way: EVAL, DELIFEQ and WATCH are all refused ({answers['EVAL'][1]})",
        hint=f"nothing was deleted; on the server: ACL SETUSER {user_name(client)} +eval",
    )


def _refuse(client: Client, target: str, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
    for command, (right, said) in zip(commands, answers, strict=True):
        if right == "read-only":
            raise Denied(f"{target} is a replica: writing here would not last ({said})", hint="nothing was changed; name its primary")
        if right == "no":
            raise LlmdiagError(f"{target} takes no {_name(command)} now: {said}", hint="nothing was changed")
    missing = [_name(command) for command, (right, _) in zip(commands, answers, strict=True) if right in ("denied", "unknown")]
    if not missing:
        return
    said = next(text for right, text in answers if right in ("denied", "unknown"))
    grant = " ".join(f"+{name.lower()}" for name in missing)
    hint = f"nothing was changed; on the server: ACL SETUSER {user_name(client)} {grant}; llmdiag scan-cache --print-acl shows all rights"
    if "UNLINK" in missing:
        hint += "; or --use-del, if DEL is allowed and the server may stop for it"
    raise Denied(f"{target}: this user may not run {', '.join(missing)} ({said})", hint=hint)


def _name(command: Command) -> str:
    return str(command[0])


def _is_about_command(answer: Answer) -> bool:
    right: Right = answer[0]
    return right in ("denied", "unknown") and "key" not in answer[1].lower().split("command")[0]
