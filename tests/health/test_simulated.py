"""Simulated engines: what is healthy is never called stalled, every hang is found in time, nobody busy would be asked."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.health.budget import Budget
from diag.health.reads import Read
from diag.health.verdict import BackendVerdict, judge, tail
from tests.health import judged
from tests.health.simulated import ENGINES, Life, Stretch, healthy, read


def test_a_few_hundred_lives() -> None:
    score = judged.run(220, seed=5)
    assert score.faults == []
    said = {truth: {state for row, state in score.matrix if row == truth} for truth, _ in score.matrix}
    assert said["hang, past budget"] == {"stalled"}
    assert said["hidden-hang, asked, past budget"] == {"stalled"}
    assert "progressing" not in said["hidden-hang, past budget"] and "idle-proven" not in said["hidden-hang, past budget"]
    assert "mixed-backends" in said["two backends"] and "admission-stalled" in said["queued"]
    assert len(score.found_after) >= 30
    assert {"healthy, one long step", "healthy, long prefill", "healthy, decoding"} <= set(said), said


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(judged.PLOTS))
def test_any_life(seed: int, name: str) -> None:
    rng, score = random.Random(seed), judged.Score()
    judged.watch(judged.plot(rng, name), rng, score)
    assert score.faults == []


def test_the_simulation_convicts_the_rule_that_counts_iterations_alone() -> None:
    score = judged.run(120, seed=5, judging=judged.naive)
    assert any("healthy called stalled" in fault and "(chunked" in fault for fault in score.faults)


def test_the_simulation_convicts_a_watcher_that_finds_nothing() -> None:
    score = judged.run(60, seed=5, judging=lambda reads, **_: BackendVerdict("idle-proven", "", 0))
    assert any("found never" in fault for fault in score.faults)
    assert any("called idle-proven" in fault for fault in score.faults)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "mindie"])
def test_a_day_on_a_virtual_clock(engine: str) -> None:
    """24 hours of healthy work read once a minute, then a hang; the watcher keeps no more than `tail`."""
    rng = random.Random(engine)
    life = Life([*healthy(rng, 290, 86_400), Stretch("decode", 60, 4, 0, 0.1, ends=False), Stretch("hang", 900, 4, 0, 0.1)], busy_before=9)
    budget, clock, reads, stalled_at, longest = Budget(), 0.0, list[Read](), list[float](), 0
    while clock < life.seconds:
        reads = list(tail([*reads, read(life, ENGINES[engine], clock)], budget))
        longest = max(longest, len(reads))
        if judge(reads, budget=budget).exit == 1:
            stalled_at.append(clock)
        clock += 60.0
    _, began = life.truth(life.seconds - 1)
    assert stalled_at and began + budget.floor_s <= stalled_at[0] <= began + budget.floor_s + 180.0
    assert longest <= 2 * budget.ceiling_s / 60 + 8


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_watcher_forgets_changes_no_verdict(seed: int) -> None:
    rng = random.Random(seed)
    story = judged.plot(rng, rng.choice(("healthy", "hang", "restart")))
    life, budget, clock, whole, kept = Life(story.stretches), Budget(), 0.0, list[Read](), list[Read]()
    while clock < life.seconds:
        item = read(life, ENGINES[story.engine], clock)
        whole.append(item)
        kept = list(tail([*kept, item], budget))
        assert judge(kept, budget=budget).state == judge(whole, budget=budget).state
        clock += story.interval_s
