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
from diag.tables import Table, table

NAME = "repro"
FEEDS = ("prefix_runs",)
NEEDS: tuple[str, ...] = ()
BUDGET_S = 1.0
BUDGET_BYTES = 1 << 20
SCHEMA = "llmdiag.repro/1"
MARK = b'"llmdiag.repro/1"'
COMMAND = "llmdiag repro-prefix URL PROMPTS.jsonl -o repro.json"
HINT = COMMAND
COLUMN_HINTS = {"prefix_trials": COMMAND}

RUNS = table(
    "prefix_runs",
    "Experiments with a prefix cache: one row each",
    "url VARCHAR: endpoint that was asked", "model VARCHAR: model that was asked",
    "verdict VARCHAR: reproduced | no-failure | not-exercised | endpoint-dead",
    "ended VARCHAR: full | reproduced | limit | minutes | interrupted | endpoint-dead",
    "exercised BOOLEAN: re-asks used cached blocks after the cache had been full",
    "healed_by_bypass BOOLEAN: what failed was right with the cache bypassed; NULL = nothing failed",
    "bypass_by VARCHAR: cache_salt | prefix; NULL = it ended before that was known",
    "family VARCHAR: engine family of the counters; NULL = no counters that are known",
    "full_by VARCHAR: what shows that the cache was full; NULL = nothing does",
    "capacity_tokens BIGINT: tokens that the cache holds; NULL = the endpoint does not tell",
    "new_tokens DOUBLE: tokens computed anew during the experiment",
    "requests BIGINT: requests in all arms",
    "failures BIGINT: reproduced failures", "noise BIGINT: suspicious answers that were not reproduced",
    "control_failures BIGINT: reproduced failures of the control arm, whose requests fill no new blocks",
    "first_ordinal BIGINT: number of the first reproduced failure within its arm, from 1; NULL = none",
    "first_arm VARCHAR: baseline | control | pressure; NULL = no failure",
    "stickiness DOUBLE: share of later re-asks of that prompt in that arm that failed too, with variants between; NULL = no failure, or none came later",
    "sticky_at_once DOUBLE: share of immediate repetitions of the first failure that failed too; NULL = no failure",
    "started TIMESTAMP: when it began", "seconds DOUBLE: how long it took",
)  # fmt: skip
TRIALS = table(
    "prefix_trials",
    "Questions to an endpoint in an experiment with its prefix cache, one row per request",
    "url VARCHAR: endpoint that was asked",
    "arm VARCHAR: baseline | control (nothing before the final question changes) | pressure (new blocks fill the cache)",
    "ordinal BIGINT: number of the request within its arm, from 1",
    "kind VARCHAR: baseline | variant | reask (a failing prompt as it is) | confirm (a suspicious answer asked again) | repeat (the first failure, again at once)",
    "prompt BIGINT: index of the prompt in the file, from 0; of a variant the one it was made from",
    "variant BIGINT: number of the variant; NULL = a prompt as it stands in the file",
    "answer_class VARCHAR: same | different | empty | cut-short | echo | garbled | unjudged (no good answer is known, and nothing gross) | error",
    "suspicious BOOLEAN: not as it should be, before it was asked again",
    "reproduced BOOLEAN: failed when asked again too, and was right with the cache bypassed; NULL = not put to that test",
    "hit BOOLEAN: cached blocks were used; NULL = the endpoint does not tell",
    "cached_tokens BIGINT: tokens of cached blocks that were used; NULL = the endpoint does not tell",
    "prompt_tokens BIGINT: tokens of the prompt; NULL = the endpoint does not tell",
    "bypass BOOLEAN: asked so that no cached block could be used",
    "seconds DOUBLE: until the whole answer was there", "ts TIMESTAMP: when it was sent",
    "note VARCHAR: why it is noise, or why there was no answer; NULL = neither",
)  # fmt: skip
TABLES: tuple[Table, ...] = (RUNS, TRIALS)
DOCUMENT_COLUMNS = ("url", "model", "verdict", "ended", "exercised", "healed_by_bypass", "seconds")
TRIAL_COLUMNS = tuple(name for name in TRIALS.column_names if name not in ("bundle", "host", "capture", "source", "url", "ts"))


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
        for number, item in enumerate(found["trials"]):
            if not isinstance(item, dict):
                raise Garbled(f"{artefact.key(f'trials[{number}]')} is no trial", hint=f"save it again: {COMMAND}")
            row = {name: _plain(item.get(name)) for name in TRIAL_COLUMNS}
            yield "prefix_trials", row | {"url": _plain(found.get("url")), "ts": _moment(item.get("ts")), "source": artefact.key(f"trials[{number}]")}
        yield "collected", {"table_name": "prefix_trials", "status": "ok"}


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
        "bypass_by": _plain(bypass.get("by")),
        **{name: _plain(cache.get(name)) for name in ("family", "full_by", "capacity_tokens", "new_tokens")},
        "requests": len(trials), "failures": len(failed), "noise": sum(item.get("reproduced") is False for item in trials),
        "control_failures": sum(item.get("arm") == "control" for item in failed),
        "first_ordinal": _plain(first.get("ordinal")), "first_arm": _plain(first.get("arm")), "stickiness": _plain(arm.get("stickiness")), "sticky_at_once": _plain(arm.get("sticky_at_once")),
        "started": _moment(found.get("started_at")),
    }


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


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
