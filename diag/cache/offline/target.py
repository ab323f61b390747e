"""What a person named on disk -> the files that make up one cache, in the order they are read."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.errors import BadInput
from diag.loose import shown

SUFFIXES = (".rdb", ".aof", ".manifest")
HINT = "give an RDB file, an append-only file, or the folder with the manifest of Redis 7"
MAX_MANIFEST_BYTES = 1 << 20
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))")
ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b"}


@dataclass(frozen=True)
class Files:
    """The files of one cache: at most one of the whole state, then what was written since, oldest first."""

    whole: Path | None
    since: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def is_path(target: str) -> bool:
    """Does this name a file or folder rather than a server, whether it exists or not?"""
    if "://" in target:
        return False
    return os.path.lexists(target) or target.endswith(SUFFIXES) or target.startswith(("/", "./", "../"))


def files_of(path: Path) -> Files:
    """The files to read. Raises BadInput: nothing there, several caches, or a manifest that is wrong (file:line)."""
    if not path.exists():
        raise BadInput(f"no such file or folder: {shown(path)}", hint=HINT)
    try:
        if path.is_dir():
            return _of_folder(path)
    except OSError as error:
        raise BadInput(f"cannot read {shown(path)}: {error.strerror}", hint="check its permissions") from error
    if path.suffix == ".manifest":
        return _of_manifest(path)
    if path.name.endswith(".incr.aof"):
        return Files(None, (path,), (f"{shown(path)} is only what was written since the last rewrite; name its folder to see the whole cache",))
    return Files(path)


def _of_folder(folder: Path) -> Files:
    """Its manifest, or that of the one folder below it, or the one file of a cache in it."""
    inside = sorted(folder.iterdir())
    own = [path for path in inside if path.suffix == ".manifest"]
    below = [path for sub in inside if sub.is_dir() and os.access(sub, os.R_OK | os.X_OK) for path in sorted(sub.glob("*.manifest"))]
    files = [] if own else [path for path in inside if path.suffix in (".rdb", ".aof") and path.is_file()]
    found = [*own, *([] if own else below), *files]
    if not found:
        raise BadInput(f"{shown(folder)} holds no cache: no .manifest, .rdb or .aof", hint=HINT)
    if len(found) > 1:
        named = ", ".join(shown(path) for path in found[:5])
        raise BadInput(f"{shown(folder)} holds {len(found)} caches, each of its own time", hint=f"name one of them: {named}")
    return files_of(found[0])


def _of_manifest(path: Path) -> Files:
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_MANIFEST_BYTES).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise BadInput(f"cannot read {shown(path)}: {error.strerror}", hint="check its permissions") from error
    listed = [item for number, line in enumerate(text.splitlines(), 1) for item in _line(path, number, line)]
    bases = [file for kind, _, file in listed if kind == "b"]
    if len(bases) > 1:
        raise BadInput(f"{shown(path)} names {len(bases)} base files", hint="it is damaged: name the .rdb or .aof itself")
    if not listed:
        raise BadInput(f"{shown(path)} names no file", hint="name the .rdb or .aof itself")
    since = tuple(file for kind, _, file in sorted(listed, key=lambda item: item[1]) if kind == "i")
    return Files(bases[0] if bases else None, since)


def _line(path: Path, number: int, line: str) -> Iterator[tuple[str, int, Path]]:
    """`file appendonly.aof.1.incr.aof seq 1 type i` -> kind, sequence, file; nothing for comments and history."""
    words = [_unquoted(word) for word in TOKEN.findall(line)]
    if not words or words[0].startswith("#"):
        return
    facts = dict(zip(words[::2], words[1::2], strict=False))
    name, kind, sequence = facts.get("file", ""), facts.get("type", ""), facts.get("seq", "")
    if not name or kind not in ("b", "i", "h") or not sequence.isdecimal():
        raise BadInput(f"{shown(path)}:{number}: not `file NAME seq N type b, i or h`", hint="it is damaged: name the .rdb or .aof itself")
    if kind == "h":
        return
    if "/" in name or "\0" in name or name in (".", ".."):
        raise BadInput(f"{shown(path)}:{number}: a file outside of its folder", hint="the server never writes that: name the .rdb or .aof itself")
    file = path.parent / name
    if not file.is_file():
        raise BadInput(f"{shown(path)}:{number}: {shown(file)} is missing", hint="copy the whole folder, or name the .rdb or .aof that is left")
    yield kind, int(sequence), file


def _unquoted(word: str) -> str:
    if not word.startswith('"') or len(word) < 2:
        return word
    return ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else ESCAPED.get(found[2], found[2]), word[1:-1])
