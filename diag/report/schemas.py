"""JSON Schemas (2020-12) of what commands print with `--format json`: every NAME.schema.json in this folder."""

import json
from importlib import resources

SUFFIX = ".schema.json"


def names() -> list[str]:
    """Of all schemas."""
    return sorted(file.name.removesuffix(SUFFIX) for file in resources.files(__package__).iterdir() if file.name.endswith(SUFFIX))


def of(name: str) -> dict[str, object] | None:
    """The schema of that name, or the one that also describes documents of that name (restore is a part of cache); None = there is none."""
    by_name = {found: _read(found) for found in names()}
    if name in by_name:
        return by_name[name]
    return next((schema for schema in by_name.values() if f'"llmdiag.{name}/' in json.dumps(schema)), None)


def _read(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((resources.files(__package__) / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    return found
