"""A purge as a folder to review and run without this tool: `purge.sh`, `purge.lua`, `restore.sh` and the list of keys.

For sites that let no new client near their cache. The scripts need a shell and redis-cli; they hold no key and no
value: names are hexadecimal data in `keys.tsv`, which the shell passes on and Lua decodes on the server.
"""

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jinja2 import FunctionLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from diag import __version__
from diag.cache.purging.backup import Entry
from diag.cache.purging.planning import FAMILY_SHARE, FEW, HALF, Plan
from diag.cache.purging.rereading import lonely, second_read
from diag.cache.servers.connection import Client, speaking
from diag.cache.values import halves
from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, LlmdiagError

BATCH_KEYS = 50
BATCH_BYTES = 1 << 20
"""The server does nothing else while it compares a batch."""
PAUSE_S = 0.1
SHOWN_BYTES = 200
COLUMNS = ("db", "key_hex", "sha1", "expires_at_ms", "bytes", "type", "with", "reasons", "family", "family_keys", "name")
"""Of keys.tsv; the scripts count on this order. "-" is no expiry, no other half, or a size that is not known."""


@dataclass(frozen=True)
class Written:
    """What is in the folder now."""

    folder: Path
    keys: int
    changed: int
    """Planned keys that were no longer as judged when they were read again, and are not in the list."""


def refuse_place(folder: Path) -> None:
    """BadInput: there is something at this place already. LlmdiagError: no folder can be made there."""
    if not os.path.lexists(folder):
        if not folder.absolute().parent.is_dir():
            raise _unwritable(folder, "no such folder above it")
        return
    try:
        empty = folder.is_dir() and next(folder.iterdir(), None) is None
    except OSError as error:
        raise _unwritable(folder, error.strerror) from error
    if not empty:
        raise BadInput(f"--script {folder}: there is something already", hint="name a new folder, or an empty one")


def write(client: Client, plan: Plan, folder: Path, *, max_keys: int, force: bool = False) -> Written:
    """Read each planned key again and write the folder, all of it or nothing. Changes nothing on the server.

    `max_keys` and the sizes in the plan are the limits that `purge.sh --apply` keeps; `force` lifts them there.
    BadInput, LlmdiagError: the place. CannotConnect, Denied, TimedOut: the server.
    """
    refuse_place(folder)
    sizes = {} if plan.sizes is None else plan.sizes
    with speaking(plan.target):
        lines = _lines(client, plan.keys, sizes)
    listed = "".join("\t".join(parts) + "\n" for parts in (("#" + COLUMNS[0], *COLUMNS[1:]), *lines))
    _write_all(folder, {"keys.tsv": listed, "purge.lua": _template("purge.lua"), **_scripts(plan, len(lines), max_keys, force)})
    return Written(folder, len(lines), len(plan.keys) - len(lines))


def _lines(client: Client, keys: Sequence[CacheKey], sizes: Mapping[str, int]) -> list[list[str]]:
    """The columns of every key that is still as it was judged; both halves of a pair or none."""
    alone = lonely(keys)
    lines: list[list[str]] = []
    before: CacheKey | None = None
    for row, entry in second_read(client, keys):
        if isinstance(entry, str):
            before = None
            continue
        follows = before is not None and before.db == row.db and halves.partner(before.name) == row.name
        if follows:
            lines[-1][COLUMNS.index("with")] = ">"
        other = alone.get((row.db, row.name))
        goes_with = "<" if follows else "-" if other is None else f"!{other.hex()}"
        lines.append(_columns(row, entry, goes_with, sizes.get(row.family)))
        before = None if follows else row
    return lines


def _columns(row: CacheKey, entry: Entry, goes_with: str, size: int | None) -> list[str]:
    """For COLUMNS."""
    return [
        str(row.db), row.key_hex, hashlib.sha1(entry.value, usedforsecurity=False).hexdigest(),
        "-" if entry.expires_at_ms is None else str(entry.expires_at_ms), str(len(entry.value)), entry.type, goes_with,
        ",".join(row.reasons) or "-", _shown(row.family.encode(errors="surrogateescape")), "-" if size is None else str(size), _short(row.name),
    ]  # fmt: skip


def _shown(name: bytes) -> str:
    """Printable ASCII, each other byte as \\xHH: nothing in it ends a line or a column, or moves a cursor."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in name)


def _short(name: bytes) -> str:
    """Enough of it to know it by."""
    more = f"...({len(name)} bytes)" if len(name) > SHOWN_BYTES else ""
    return (_shown(name[:SHOWN_BYTES]) or "(empty)") + more


def _scripts(plan: Plan, count: int, max_keys: int, force: bool) -> dict[str, str]:
    """purge.sh and restore.sh. What goes into them are numbers, the address shell-quoted, and comments of one line."""
    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(_template), undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, trim_blocks=True,
        block_start_string="<%", block_end_string="%>", variable_start_string="<{", variable_end_string="}>",
        comment_start_string="<!#", comment_end_string="#!>",
    )  # fmt: skip
    facts = {
        "count": count, "version": __version__, "created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "target": _shown(plan.target.encode(errors="surrogateescape")), "connection": _connection(plan.target),
        "max_keys": max_keys, "family_pct": round(100 * FAMILY_SHARE), "half_pct": round(100 * HALF), "few": FEW,
        "scanned_keys": "-" if plan.sizes is None else sum(plan.sizes.values()), "force": "yes" if force else "no",
        "batch_keys": BATCH_KEYS, "batch_bytes": BATCH_BYTES, "pause_s": PAUSE_S,
    }  # fmt: skip
    return {name: environment.get_template(f"{name}.j2").render(facts) for name in ("restore.sh", "purge.sh")}


def _connection(target: str) -> str:
    """The options of redis-cli for this address, quoted for a shell; "": it is no single server, a person must name one."""
    parts = urlsplit(target)
    if parts.scheme == "unix":
        return shlex.join(["-s", unquote(parts.path)])
    if parts.scheme not in ("redis", "rediss") or parts.hostname is None:
        return ""
    options = ["-h", parts.hostname, "-p", str(parts.port or 6379)]
    return shlex.join([*options, "--tls"] if parts.scheme == "rediss" else options)


def _template(name: str) -> str:
    return (resources.files("diag.cache.purging") / "script_templates" / name).read_text(encoding="utf-8")


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    """New files for their owner only; what was begun is taken away again when one cannot be written."""
    made: list[Path] = []
    fresh = not folder.exists()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            mode = 0o700 if path.suffix == ".sh" else 0o600
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
            made.append(path)
            with os.fdopen(handle, "w", encoding="ascii", newline="\n") as out:
                out.write(text)
    except BaseException as error:
        with suppress(OSError):
            for path in made:
                path.unlink()
            if fresh:
                folder.rmdir()
        if isinstance(error, OSError):
            raise _unwritable(folder, error.strerror) from error
        raise


def _unwritable(folder: Path, why: str | None) -> LlmdiagError:
    return LlmdiagError(f"--script {folder} cannot be written: {why}", hint="nothing was changed; choose another place")
