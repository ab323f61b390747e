"""What the shipped rules say when they do not match: a sentence a person understands, in every case."""

import re
from collections.abc import Mapping, Sequence

import pytest

from diag import engine, rules
from diag.report import words
from tests.conftest import MakeCase
from tests.report_cases import diagnosis

ANSWER = {"read": 0, "target": "127.0.0.1:8000", "url": "http://127.0.0.1:8000/health", "outcome": "answer", "status": 200, "seconds": 0.004}
LISTENS = {"read": 0, "pid": 7, "lport": 8000, "state": "LISTEN", "recv_q": 0}
SPIN = [{"read": n, "pid": 7, "tid": 7, "name": "loop", "state": "R", "ts": f"2026-11-30T02:41:1{5 * n}", "run_s": 5.0 * n, "runq_s": 0.0} for n in (0, 1)]
TABLES = ("threads", "thread_states", "stack_frames", "probes", "sockets", "processes", "metrics", "collected")


def frames(*funcs: str, samples: Sequence[int] = (0, 1, 2)) -> list[dict[str, object]]:
    """A stack, innermost first, in some samples; `select` waits, `run_forever` is a loop."""
    file = {"select": "/usr/lib/python3.11/selectors.py", "run_forever": "/usr/lib/python3.11/asyncio/base_events.py"}
    return [
        {"sample": sample, "pid": 7, "tid": 7, "thread": "MainThread", "depth": depth, "func": func, "file": file.get(func, "srv.py"), "line": 1, "whole": True}
        for sample in samples
        for depth, func in enumerate(funcs)
    ]


def why_not(make_case: MakeCase, rule: str, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> str:
    case = make_case(rows, TABLES)
    (wanted,) = [item for item in rules.load(rules.shipped()) if item.id == rule]
    found = engine.judge(case, wanted, {})
    ((_, why),) = words.ruled_out(diagnosis("clear", found))
    return why


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"probes": [ANSWER, {**ANSWER, "read": 1}], "sockets": [LISTENS]}, "the service answers: http://127.0.0.1:8000/health gave 200 in 0.00 s"),
        ({"probes": [{**ANSWER, "status": None}]}, "the service answers: http://127.0.0.1:8000/health gave no status in 0.00 s"),
        ({}, "no port listens: there was nothing to ask"),
        ({"sockets": [LISTENS]}, "none of its ports speaks HTTP: there was nothing to ask"),
        ({"probes": [{**ANSWER, "outcome": "timeout"}], "sockets": [LISTENS]}, "the service was asked only once, which is no silence yet"),
    ],
)
@pytest.mark.parametrize("rule", ["cpu-spin", "event-loop-blocked"])
def test_why_no_answer_is_not_missed(make_case: MakeCase, rule: str, rows: Mapping[str, Sequence[Mapping[str, object]]], why: str) -> None:
    busy = {"threads": SPIN, "stack_frames": frames("merge", "run_forever" if rule == "event-loop-blocked" else "main")}
    assert why_not(make_case, rule, {**busy, **rows}) == why


@pytest.mark.parametrize(
    ("stack", "why"),
    [
        ([], "no thread runs an event loop"),
        (frames("merge", "main"), "no thread runs an event loop"),
        (frames("read", "run_forever", samples=(0, 1)), "the event loop of MainThread was seen in only 2 samples"),
        (
            frames("read", "run_forever", samples=(0, 1)) + frames("select", "run_forever", samples=(2,)),
            "the event loop of MainThread was back in its selector in 1 of 3 samples",
        ),
        (frames("read", "run_forever") + frames("exit", samples=(3,)), "the event loop of MainThread ended while it was looked at"),
    ],
)
def test_why_a_loop_is_not_blocked(make_case: MakeCase, stack: Sequence[Mapping[str, object]], why: str) -> None:
    rows = {"stack_frames": stack, "probes": [{**ANSWER, "outcome": "timeout", "read": n} for n in (0, 1)], "sockets": [LISTENS]}
    assert why_not(make_case, "event-loop-blocked", rows) == why


@pytest.mark.parametrize("rule", rules.load(rules.shipped()), ids=lambda rule: rule.id)
def test_an_action_says_what_its_command_does(rule: rules.Rule) -> None:
    """No other number of samples in the title than in the command."""
    for action in rule.actions:
        for number in re.findall(r"(\w+) (?:more )?samples", action.title):
            assert f"--samples {number} " in f"{action.run} ", action
