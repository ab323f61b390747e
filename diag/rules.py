"""Rules: one TOML file per signature, read strictly. Unknown keys, newer schemas and bad references are errors."""

import re
import string
import tomllib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from diag.errors import RuleError

SCHEMA = 1
SEVERITIES = ("critical", "high", "medium", "low", "info")
ACTION_FIELDS = frozenset({"target", "bundle", "evidence", "pid", "backup"})
WIDE = re.compile(r"\d{4}|[{}]")
"""In a format: four digits would be a text of a thousand characters and more; braces take the width from a value."""


class Signal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question to the evidence: SQL whose rows are the answer."""

    id: str
    role: Literal["required", "proof", "support", "against"]
    says: str
    sql: str
    near: str | None = None
    near_says: str | None = None
    excused_by: str | None = None


class ActionTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command to offer, with `{field}` placeholders that are filled shell-quoted."""

    title: str
    run: str = ""
    undo: str = ""
    when: str | None = None
    """Offered only if this signal held."""


class Runbook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Markdown templates (Jinja2, sandboxed)."""

    confirm: str
    stop_the_bleeding: str
    fix: str
    prevent: str


class RuleTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recorded sample and the verdict the rule must give on it."""

    sample: str
    expect: Literal["confirmed", "likely", "not matched", "inconclusive"]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signature: what must hold, what proves it, what speaks against it, what to do."""

    schema: int
    id: str
    title: str
    severity: Literal["critical", "high", "medium", "low", "info"]
    about: str
    signals: tuple[Signal, ...]
    runbook: Runbook
    tests: tuple[RuleTest, ...]
    subject: str = ""
    """What exactly is at fault, in a few words with `{columns}` of the first rows: the key, the process."""
    actions: tuple[ActionTemplate, ...] = ()
    explains: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    false_positives: tuple[str, ...] = ()
    known_gaps: tuple[str, ...] = ()


def shipped() -> Path:
    """The folder of the rules that come with llmdiag: inside the wheel, else beside the package."""
    inside = Path(__file__).parent / "_rules"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "rules"


def samples() -> Path:
    """The folder of the samples that come with llmdiag: inside the wheel, else beside the package."""
    inside = Path(__file__).parent / "_samples"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "samples"


def load(folder: Path) -> tuple[Rule, ...]:
    """All rules of a folder, by id. Raises RuleError naming file and key."""
    if not folder.is_dir():
        raise RuleError(f"{folder} is not a folder of rules", hint="name a folder with one TOML file per rule")
    found = tuple(read(path) for path in sorted(folder.glob("*.toml")))
    if not found:
        raise RuleError(f"no rules in {folder}", hint="name a folder with one TOML file per rule; llmdiag rules show NAME prints one")
    return found


def read(path: Path) -> Rule:
    """One rule file -> Rule."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise RuleError(f"{path}: {error}", hint="a rule is a UTF-8 TOML file; llmdiag help rules shows one") from error
    version = raw.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RuleError(f"{path}: schema: must be the number {SCHEMA}, not {version!r}", hint=f'write: schema = {SCHEMA}')
    if version > SCHEMA:
        raise RuleError(f"{path}: schema: {version} is newer than {SCHEMA}, the newest this llmdiag reads", hint="use a newer llmdiag")
    try:
        rule = msgspec.convert(raw, Rule)
    except msgspec.ValidationError as error:
        raise RuleError(f"{path}: {_place(str(error), raw)}", hint="llmdiag help rules describes keys and values") from error
    for problem in problems(rule, path):
        raise RuleError(f"{path}: {problem}", hint="llmdiag help rules describes keys and values")
    return rule


def problems(rule: Rule, path: Path) -> list[str]:
    """What the schema alone does not catch, each as `key: problem`."""
    ids = [signal.id for signal in rule.signals]
    found = []
    if rule.id != path.stem:
        found.append(f"id: {rule.id!r} must be the file name {path.stem!r}")
    if len(set(ids)) != len(ids):
        found.append("signals: two signals have the same id")
    if not any(signal.role == "required" for signal in rule.signals):
        found.append("signals: at least one must have the role 'required'")
    found += [f"subject: {text}" for text in field_problems(rule.subject)]
    for signal in rule.signals:
        found += [f"signals.{signal.id}.{text}" for text in _signal_problems(signal, ids)]
    for action in rule.actions:
        found += [f"actions.{action.title}: {text}" for text in field_problems(action.run + action.undo)]
        if action.when is not None and action.when not in ids:
            found.append(f"actions.{action.title}.when: no signal {action.when!r}")
    found += [f"tests: the sample {test.sample!r} is no plain path below the samples" for test in rule.tests if not _stays_below(test.sample)]
    return found


def _stays_below(sample: str) -> bool:
    path = PurePosixPath(sample)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _signal_problems(signal: Signal, ids: Sequence[str]) -> list[str]:
    found = [f"says: {text}" for text in field_problems(signal.says)]
    if (signal.near is None) != (signal.near_says is None):
        found.append("near: near and near_says go together")
    if signal.near_says is not None:
        found += [f"near_says: {text}" for text in field_problems(signal.near_says)]
    if signal.excused_by is not None and signal.excused_by not in ids:
        found.append(f"excused_by: no signal {signal.excused_by!r}")
    if signal.excused_by is not None and signal.role != "against":
        found.append("excused_by: only a signal with the role 'against' can be excused")
    return found


def fields(template: str) -> list[str]:
    """Names of the `{fields}` of a template. Raises ValueError when it is not well formed."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


def field_problems(template: str) -> list[str]:
    """Fields must be plain names: no attribute, no index, no position. Their formats are small and name no further field."""
    try:
        found = [f"{{{name}}} is not a plain column name" for name in fields(template) if not name.isidentifier()]
        formats = [(name, spec) for _, name, spec, _ in string.Formatter().parse(template) if name is not None and spec]
    except ValueError as error:
        return [str(error)]
    return found + [f"{{{name}:{spec}}} makes a text that is too wide, or depends on a value" for name, spec in formats if WIDE.search(spec)]


def _place(message: str, raw: dict[str, object]) -> str:
    """msgspec's `… - at `$.signals[0].role`` with the signal's own id, so that a person finds it."""
    text, _, path = message.partition(" - at `$")
    place = path.rstrip("`").lstrip(".")
    signals = raw.get("signals")
    if place.startswith("signals[") and isinstance(signals, list):
        number, _, rest = place.removeprefix("signals[").partition("]")
        item = signals[int(number)] if number.isdigit() and int(number) < len(signals) else None
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            place = f"signals.{item['id']}{rest}"
    return f"{place}: {text}" if place else text
