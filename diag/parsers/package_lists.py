"""Lists of installed packages that a person saved -> versions: pip freeze, pip list, uv, conda list, and differences of two of them.

    flashinfer-python==0.6.8.post1          pip freeze; behind `+ ` or a blank in a diff, where lines behind `-` are what there was before
    flashinfer-python   0.6.8.post1         pip list, conda list (below their heads)
    [{"name": "torch", "version": "2.11.0"}, …]     pip list --format json
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from diag.model import Artefact, Row
from diag.parsers import dist_info

LEAST, WHOLE = 3, 20
"""So many packages make a list; with fewer than so many it is a part of one."""
FROZEN = re.compile(r"^(?P<sign>[+\- ]?)(?P<name>[A-Za-z0-9][\w.\-]*)==(?P<version>\d[\w.+!]*)\s*(?:;.*|#.*)?$")
LISTED = re.compile(r"^(?P<name>[A-Za-z0-9][\w.\-]*)\s+(?P<version>\d[\w.+!]*)(?:\s+\S+){0,3}\s*$")
TABLE = re.compile(r"^(?:Package\s+Version|# packages in environment at |# Name\s+Version)", re.M)
DIFF = re.compile(r"^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@", re.M)


class _Package(msgspec.Struct):
    name: str
    version: str


def recognise(head: str) -> bool:
    """Enough packages in one of these forms, and at least one that an engine is made of."""
    found = list(_packages(head))
    return len(found) >= LEAST and any(True for _, dist in found for _ in dist_info.versions([dist], ()))


def rows(artefact: Artefact) -> Iterator[Row]:
    """Rows of versions; only a whole list counts as all that there is."""
    text = artefact.text()
    found = list(_packages(text))
    seen: set[str] = set()
    for number, dist in found:
        for component, version in dist_info.versions([dist], ()):
            if component not in seen:
                seen.add(component)
                yield "versions", {"component": component, "version": version, "source": artefact.at(number)}
    if len(found) < WHOLE or DIFF.search(text):
        reason = f"{artefact.path} names some packages only; give the whole list (pip freeze)"
        yield "collected", {"table_name": "versions", "status": "partial", "reason": reason}


def _packages(text: str) -> Iterator[tuple[int, str]]:
    """(line, `name-version` as dist_info reads it) of what is installed now."""
    if text.lstrip().startswith("["):
        yield from _of_json(text)
        return
    table = TABLE.search(text) is not None
    if not table and "==" not in text:
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = FROZEN.match(line) or (LISTED.match(line) if table else None)
        if match is not None and match.groupdict().get("sign") != "-":
            yield number, f"{match['name']}-{match['version']}"


def _of_json(text: str) -> Iterable[tuple[int, str]]:
    try:
        return [(1, f"{item.name}-{item.version}") for item in msgspec.json.decode(text, type=list[_Package])]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []
