"""Witness files are read strictly, recorded lists too; the budget is the written formula; what processes prove."""

import gzip
from pathlib import Path

import pytest

from diag.errors import BadInput, RuleError
from diag.health import proof, witnesses
from diag.health.budget import Budget
from diag.health.proof import Look, ProcessEvidence, ProcessSeen
from diag.health.reads import Read, Record, by_backend, elapsed_s, parse, read_of, records

GOOD = '''
kind = "mine"
title = "t"
rank = 1
versions = ["1"]
prefixes = ["mine_"]
[[witness]]
name = "running"
role = "running"
[[trap]]
name = "x"
why = "because it is one"
'''


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('rank = 1', 'rank = "1"'), r"mine\.toml: Expected `int`"), (('role = "running"', 'role = "runs"'), r"Invalid enum value 'runs'"),
        (('role = "running"', 'role = "running"\nunits = "s"'), r"unknown field `units`"), (('title = "t"', 'title = "t"\nabout = "x"'), r"unknown field `about`"),
        (('kind = "mine"', 'kind = "other"'), r"kind is 'other'"), (('why = "because it is one"', ""), r"missing required field `why`"), (("rank = 1", "rank = "), r"mine\.toml: "),
    ],
)
def test_witness_files_are_read_strictly(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    assert [family.kind for family in witnesses.load(tmp_path)] == ["mine"]
    (tmp_path / "mine.toml").write_text(GOOD.replace(*change))
    with pytest.raises(RuleError, match=says):
        witnesses.load(tmp_path)


@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm_num_requests_running", "ray_vllm_num_requests_running", "ray_vllm:num_requests_running"])
def test_spellings(name: str) -> None:
    found = witnesses.find(name, {})
    assert found is not None and (found.family.kind, found.plain, found.witness.role) == ("vllm", "vllm:num_requests_running", "running")


def test_parts_of_a_total_and_other_series_are_left_out() -> None:
    assert witnesses.find("sglang:num_running_reqs", {"priority": "5"}) is None
    assert witnesses.find("sglang:num_running_reqs", {"priority": ""}) is not None
    assert witnesses.find("nv_trt_llm_request_metrics", {"request_type": "max"}) is None
    assert witnesses.find("dynamo_component_inflight_requests", {"dynamo_endpoint": "clear_kv_blocks"}) is None
    assert witnesses.find("vllm:nothing", {}) is None


@pytest.mark.parametrize(("tokens", "seconds"), [(16_900, 9.6), (67_000, 50.7), (134_000, 135.0), (202_000, 256.0)])
def test_the_formula_meets_what_was_measured(tokens: int, seconds: float) -> None:
    assert Budget(margin=1.0).prefill_s(tokens) == pytest.approx(seconds, rel=0.02)


def test_budget() -> None:
    assert (Budget().seconds(), Budget().seconds(1000.0), Budget(floor_s=30.0).seconds()) == (300.0, 300.0, 30.0)
    assert Budget().seconds(262_144.0) == pytest.approx(783.8, abs=0.5)
    assert (Budget().seconds(1e7), Budget().seconds(1e7, past_prefill=True)) == (1800.0, 300.0)
    assert Budget(prompt_tokens=1_000_000).seconds(past_prefill=True) == pytest.approx(2 * 50.4 * 85)
    assert Budget(scale=0.3).seconds(262_144.0) == 300.0
    assert "the floor" in Budget().says() and "as computed" in Budget().says(262_144.0) and "the ceiling" in Budget().says(1e7)


def test_recorded_list() -> None:
    text = b'{"url":"u","file":"0001.txt","outcome":"answer","status":200,"ts":1.5,"monotonic_s":2.5}\n\n{"url":"v","outcome":"timeout"}\n'
    first, second = records(text, "reads.jsonl")
    assert (first.file, second.file, second.outcome) == ("0001.txt", None, "timeout")
    backends = by_backend([(first, b"vllm:num_requests_running 1\n"), (second, None)])
    assert {url: [read.outcome for read in found] for url, found in backends.items()} == {"u": ["answer"], "v": ["timeout"]}
    assert backends["u"][0].samples[0].value == 1.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", r"reads\.jsonl:2: "), (b'{"url":"u","outcome":"maybe"}', "Invalid enum value"), (b'{"url":"u","outcome":"answer","fiel":"x"}', "unknown field `fiel`"),
        (b'{"url":"u","outcome":"answer","file":"../x"}', "not a name inside the folder"), (b'{"url":"u","outcome":"answer","file":".."}', "not a name inside"), (b'{"outcome":"answer"}', "missing required field `url`"),
        (b"\xff\xfe", r"reads\.jsonl:2: "),
    ],
)
def test_bad_lists(line: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        list(records(b'{"url":"u","outcome":"timeout"}\n' + line, "reads.jsonl"))


@pytest.mark.parametrize(
    ("body", "count", "problem"),
    [
        (b"", 0, ""), (b"<html>no</html>", 0, "HTML, not metrics"), (b"a 1\nb 2\n", 2, ""), (b"a 1\noops\n", 1, "1 lines are no samples, the first is line 2"),
        (b"just words here\n", 0, "no metrics: line 1 is no sample"), (gzip.compress(b"a 1\n", mtime=0), 1, ""), (gzip.compress(b"a 1\n" * 99, mtime=0)[:20], 0, "damaged gzip"), (b"a NaN\n", 1, ""),
    ],
)
def test_bodies(body: bytes, count: int, problem: str) -> None:
    samples, found = parse(body)
    assert len(samples) == count and found.startswith(problem) and (problem != "" or found == "")


def test_an_answer_that_is_not_200_is_not_parsed() -> None:
    read = read_of(Record(url="u", outcome="answer", status=500), b"a 1\n")
    assert (read.samples, read.problem) == ((), "HTTP 500")


def test_elapsed_prefers_the_clock_that_never_jumps() -> None:
    assert elapsed_s(Read("answer", 100.0, 5.0), Read("answer", 90.0, 8.0)) == 3.0
    assert elapsed_s(Read("answer", 100.0, 5.0), Read("answer", 104.0, 1.0)) == 4.0
    assert elapsed_s(Read("answer", 100.0), Read("answer", 90.0)) is None
    assert elapsed_s(Read("answer"), Read("answer", 90.0)) is None


def looks(*each: tuple[str, float, str], role: str = "worker", **more: object) -> ProcessEvidence:
    """One process, (state, cpu_s, stack) per look, 30 s apart."""
    return ProcessEvidence(tuple(
        Look((ProcessSeen(9, role, state, 1.0, cpu, stack),), ts=number * 30.0, monotonic_s=number * 30.0) for number, (state, cpu, stack) in enumerate(each)
    ))


def test_halted() -> None:
    assert proof.halted(looks(("T", 0.0, "a"), ("T", 0.0, "a"))) == "worker 9 is stopped by a signal at both looks"
    assert proof.halted(looks(("Z", 0.0, "a"))) == "worker 9 is dead (zombie)"
    for states in (("T", "R"), ("R", "T"), ("t", "t"), ("D", "D"), ("S", "S")):
        assert proof.halted(looks(*((state, 0.0, "a") for state in states))) is None, states
    assert proof.halted(looks(("T", 0.0, "a"), ("T", 0.0, "a"), role="api_server")) is None


def test_gone_and_replaced() -> None:
    worker, new = ProcessSeen(9, "worker", "S", 1.0), ProcessSeen(19, "worker", "S", 90.0)
    assert proof.halted(ProcessEvidence((Look((worker,)), Look(()), Look(())))) == "worker 9 is gone at both looks"
    assert proof.halted(ProcessEvidence((Look((worker,)), Look(())))) is None, "one look is too early"
    assert proof.halted(ProcessEvidence((Look((worker,)), Look((new,)), Look((new,))))) is None


def test_works() -> None:
    assert proof.works(looks(("R", 1.0, "a"), ("R", 9.0, "b"))) == "worker 9 ran and changed its stack between the last two looks"
    for pair in ((("R", 1.0, "a"), ("R", 9.0, "a")), (("S", 1.0, "a"), ("S", 1.0, "b")), (("R", 1.0, "a"), ("D", 9.0, "b")), (("R", 1.0, "a"),)):
        assert proof.works(looks(*pair)) is None, pair
    assert proof.works(ProcessEvidence((Look((ProcessSeen(9, "worker", "R"),)), Look((ProcessSeen(9, "worker", "R"),))))) is None, "stacks are not known"


def test_frozen() -> None:
    still = ("S", 1.0, "a")
    assert proof.frozen_s(looks(still, still)) is None
    found = proof.frozen_s(looks(("R", 0.5, "b"), still, still, still))
    assert found is not None and found[0] == 60.0 and "uses no CPU" in found[1]
    assert "sleeps uninterruptibly" in str(proof.frozen_s(looks(*[("D", 1.0, "a")] * 3)))
    assert proof.frozen_s(looks(still, still, ("S", 5.0, "a"))) is None


def service(*looks: str) -> ProcessEvidence:
    """Looks 10 s apart; letters: a = api_server, c = engine_core, w = worker, o = other; capital = stopped, with ! = zombie."""
    roles = {"a": "api_server", "c": "engine_core", "w": "worker", "o": "other"}
    return ProcessEvidence(tuple(
        Look(tuple(
            ProcessSeen(ord(letter.lower()), roles[letter.lower()], "Z" if text[place + 1:place + 2] == "!" else "T" if letter.isupper() else "S", 1.0, 5.0)
            for place, letter in enumerate(text) if letter != "!"
        ), number * 10.0, number * 10.0)
        for number, text in enumerate(looks)
    ))


@pytest.mark.parametrize(("looks", "says", "over"), [
    (("acw", "acw"), None, False),
    (("acw", ""), "its process is gone", True),
    (("acw", "a!"), "its process is gone", True),
    (("acw", "w"), None, False),
    (("acw", "w", "w"), "its process is gone, though worker 119 lives on", True),
    (("acw", "cw", "a!cw"), "its process is gone, though engine_core 99, worker 119 live on", True),
    (("acw", "o", "oa"), None, False),
    (("o", "o"), None, False),
    (("o", ""), "its process is gone", True),
    (("", ""), None, False),
    ((), None, False),
])  # fmt: skip
def test_who_answered_is_gone(looks: tuple[str, ...], says: str | None, over: bool) -> None:
    assert (proof.gone(service(*looks)), proof.outlived(service(*looks))) == (says, over)


def test_the_asked_for_process_alone_may_be_gone() -> None:
    """A worker that was named: its service may well live."""
    evidence = ProcessEvidence(service("acw", "ac").looks, gone=True)
    assert proof.gone(evidence) is not None
    assert not proof.outlived(evidence)
    assert (proof.gone(None), proof.outlived(None)) == (None, False)


@pytest.mark.parametrize(("looks", "says"), [
    (("acw", "a", "a"), "engine_core 99, worker 119 are gone at both looks"),
    (("aw", "a", "a"), "worker 119 is gone at both looks"),
    (("acw", "a"), None),
    (("acw", "aw", "aw"), None),
    (("acw", "aCW", "aCW"), "engine_core 99, worker 119 are stopped by a signal at both looks"),
    (("acw", "aCw", "aCw"), None),
    (("acw", "aC", "aC"), "engine_core 99 is stopped by a signal at both looks"),
    (("a", "a"), None),
])  # fmt: skip
def test_no_part_of_the_engine_can_run(looks: tuple[str, ...], says: str | None) -> None:
    assert proof.none_runs(service(*looks)) == says


def test_who_loads_uses_cpu_or_has_an_engine() -> None:
    assert proof.waits(service("a", "a"))
    assert not proof.waits(service("a"))
    assert not proof.waits(service("ac", "ac"))
    busy = looks(("S", 1.0, "a"), ("S", 2.0, "a"), role="api_server")
    assert not proof.waits(busy)


AT = "execute_model (x.py) > forward (y.py):7"


@pytest.mark.parametrize(("each", "seconds"), [
    ((("R", 1.0, AT), ("R", 20.0, AT), ("R", 40.0, AT)), 60.0),
    ((("R", 1.0, AT), ("R", 20.0, AT + "1")), 30.0),
    ((("R", 1.0, AT), ("R", 20.0, AT), ("S", 20.1, AT)), None),
    ((("R", 1.0, "loop (x.py) > dequeue (y.py)"), ("R", 31.0, "loop (x.py) > dequeue (y.py)")), None),
    ((("R", 1.0, AT),), None),
])  # fmt: skip
def test_computes(each: tuple[tuple[str, float, str], ...], seconds: float | None) -> None:
    found = proof.computes(looks(*each))
    assert (None if found is None else found[0]) == seconds, found
    assert proof.computes(looks(*each, role="scheduler")) is None, "SGLang's turns when idle, too"


def test_an_engine_core_that_waits_for_requests_has_none() -> None:
    def look(number: int, core: str) -> Look:
        return Look((ProcessSeen(8, "engine_core", "S", 1.0, 1.0, core), ProcessSeen(9, "worker", "R", 1.0, number * 30.0, AT)), number * 30.0, number * 30.0)

    assert proof.computes(ProcessEvidence(tuple(look(number, "step (c.py) > result (m.py)") for number in range(2)))) is not None
    assert proof.computes(ProcessEvidence(tuple(look(number, "run_busy_loop (c.py) > _process_input_queue (c.py)") for number in range(2)))) is None
