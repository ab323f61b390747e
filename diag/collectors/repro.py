"""What `llmdiag repro-prefix` found out about the prefix cache of an endpoint: the saved JSON document, question by question.

    {"schema": "llmdiag.repro/1", "verdict": "reproduced", "url": "http://127.0.0.1:8000", "model": "qwen3",
     "trials": [{"arm": "pressure", "ordinal": 1702, "kind": "reask", "prompt": 0, "answer_class": "empty", "reproduced": true,
                 "hit": true, "cached_tokens": 384, "prompt_tokens": 431, "bypass": false, "seconds": 0.8, "ts": 1796007298.3, …}], …}

An experiment asks thousands of questions, so a snapshot never makes one; it reads what is handed in.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from diag.bundle import Door
from diag.errors import Garbled
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.tables import CORE, Table

NAME = "repro"
FEEDS = ("prefix_runs",)
NEEDS: tuple[str, ...] = ()
BUDGET_S = 1.0
BUDGET_BYTES = 1 << 20
SCHEMA = "llmdiag.repro/1"
MARK = b'"llmdiag.repro/1"'
COMMAND = "llmdiag repro-prefix URL PROMPTS.jsonl -o repro.json"
HINT = COMMAND
LIVE = False
COLUMN_HINTS = {"prefix_trials": COMMAND, "prefix_prompts": COMMAND}
TABLES: tuple[Table, ...] = tuple(table for table in CORE if table.name in ("prefix_runs", "prefix_trials", "prefix_prompts"))
"""Filled from what was handed in only: that a snapshot has none of it says nothing about the cache."""
DOCUMENT_COLUMNS = ("url", "model", "verdict", "ended", "exercised", "healed_by_bypass", "seconds")
TRIAL_COLUMNS = (
    "arm", "ordinal", "kind", "prompt", "variant", "answer_class", "suspicious", "reproduced", "hit", "cached_tokens", "prompt_tokens", "bypass", "seconds",
    "note", "request", "sent", "excerpt",
)  # fmt: skip


def collect(patient: Patient, door: Door) -> Collecting:
    """Nothing: an experiment is load for the patient, and for a person to start."""
    return
    yield


def recognise(name: str, head: bytes) -> bool:
    """The document that `repro-prefix -o` or `-f json` wrote."""
    return head.lstrip()[:1] == b"{" and MARK in head[:200]


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """One document -> a row of prefix_runs, and of prefix_trials per request. Raises Garbled."""
    for artefact in artefacts:
        found = _document(artefact)
        trials = [item for item in found["trials"] if isinstance(item, dict)]
        yield "prefix_runs", _run(found, trials) | {"source": artefact.key("verdict")}
        yield from _prompts(found, artefact)
        for number, item in enumerate(found["trials"]):
            if not isinstance(item, dict):
                raise Garbled(f"{artefact.key(f'trials[{number}]')} is no trial", hint=f"save it again: {COMMAND}")
            row = {name: _plain(item.get(name)) for name in TRIAL_COLUMNS}
            yield "prefix_trials", row | {"url": _plain(found.get("url")), "ts": _moment(item.get("ts")), "source": artefact.key(f"trials[{number}]")}
        for table in ("prefix_trials", "prefix_prompts"):
            yield "collected", {"table_name": table, "status": "ok"}


def _prompts(found: Mapping[str, Any], artefact: Artefact) -> Iterator[Row]:
    prompts = found.get("prompts")
    for number, item in enumerate(prompts if isinstance(prompts, list) else ()):
        if isinstance(item, dict):
            row = {"prompt": item.get("index"), "name": item.get("id"), **{name: item.get(name) for name in ("line", "stable", "expect_met", "good")}}
            plain = {name: _plain(value) for name, value in row.items()}
            yield "prefix_prompts", plain | {"url": _plain(found.get("url")), "source": artefact.key(f"prompts[{number}]")}


def _document(artefact: Artefact) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(artefact.bytes())
    except (msgspec.DecodeError, RecursionError) as error:
        raise Garbled(f"{artefact.path}: no JSON: {error}", hint=f"save it again: {COMMAND}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("trials"), list):
        raise Garbled(f"{artefact.path}: not a document of {SCHEMA}", hint=f"save it again: {COMMAND}")
    return found


def _run(found: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    cache, bypass = _object(found.get("cache")), _object(found.get("bypass"))
    failed = [item for item in trials if item.get("reproduced") is True]
    first = failed[0] if failed else {}
    arms = found.get("arms")
    arm = next((item for item in (arms if isinstance(arms, list) else ()) if isinstance(item, dict) and failed and item.get("arm") == first.get("arm")), {})
    return {
        **{name: _plain(found.get(name)) for name in DOCUMENT_COLUMNS},
        "because": _sentences(found.get("because")), "bypass_by": _plain(bypass.get("by")),
        **{name: _plain(cache.get(name)) for name in ("family", "full_by", "capacity_tokens", "new_tokens")},
        "requests": len(trials), "failures": len(failed), "noise": sum(item.get("reproduced") is False for item in trials),
        "control_failures": sum(item.get("arm") == "control" for item in failed),
        "first_ordinal": _plain(first.get("ordinal")), "first_arm": _plain(first.get("arm")), "stickiness": _plain(arm.get("stickiness")), "sticky_at_once": _plain(arm.get("sticky_at_once")),
        "started": _moment(found.get("started_at")),
    }


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sentences(value: object) -> str | None:
    return "; ".join(item for item in value if isinstance(item, str)) if isinstance(value, list) else None


def _plain(value: object) -> object:
    """What a column can hold; the loader checks the type."""
    return None if isinstance(value, list | dict) else value


def _moment(value: object) -> datetime.datetime | None:
    """Unix time -> UTC; what is none is unknown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return datetime.datetime.fromtimestamp(value, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return None
