"""The experiment against an endpoint with a prefix cache: what it finds, what it takes for noise, what it refuses to say."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from diag.repro.client import Endpoint
from diag.repro.experiment import Experiment
from diag.repro.http_post import Wire, place_of
from diag.repro.prompts import Prompt
from diag.repro.record import Run, Settings
from diag.repro.verdict import Verdict, judge
from tests.repro.endpoint import PROMPTS, Engine, Handler, Response, answer, good_answer, prompt_of, said, serving

FILE = tuple(Prompt(number, item.get("prompt"), messages=tuple(item["messages"]) if "messages" in item else None) for number, item in enumerate(PROMPTS, 1))  # type: ignore[arg-type]
QUICK = Settings(every=3, limit=400, control=6, rate=10_000, timeout_s=10, fills=2)


def experiment(handler: Handler, settings: Settings = QUICK, prompts: tuple[Prompt, ...] = FILE, stop: threading.Event | None = None) -> tuple[Run, Verdict]:
    with serving(handler) as server:
        endpoint = Endpoint(place_of(server.url), Wire(), settings.timeout_s)
        run = Experiment(endpoint, "tiny", endpoint.models(), prompts, settings, stop or threading.Event()).run()
    return run, judge(run)


def without(engine: Engine, *paths: str) -> Handler:
    """The same endpoint, some of its paths not there."""
    return lambda path, body, headers: answer(404, detail="Not Found") if path in paths else engine(path, body, headers)


def shown(run: Run) -> str:
    """What a failed check should show."""
    return "\n".join(str(trial) for trial in run.trials if trial.suspicious) + f"\n{run.ended_because}\n{run.cache}"


def test_a_lookup_that_skips_holes_is_reproduced() -> None:
    run, found = experiment(Engine(bug=True))
    assert found.verdict == "reproduced", shown(run)
    baseline, control, pressure = found.arms
    assert (baseline.failures, control.failures) == (0, 0)
    assert pressure.first_class == "empty"
    first = next(trial for trial in run.trials if trial.reproduced)
    assert first.ordinal == pressure.first_failure and first.hit is True
    assert pressure.sticky_at_once == 1.0
    assert found.healed_by_bypass is True
    confirmed = [trial for trial in run.trials if trial.kind == "confirm" and trial.ordinal in (first.ordinal + 1, first.ordinal + 2)]
    assert [(trial.bypass, trial.suspicious) for trial in confirmed] == [(False, True), (True, False)]
    assert run.bypass is not None and (run.bypass.by, run.bypass.proven) == ("cache_salt", True)
    assert run.ended == "reproduced"


def test_a_right_lookup_under_the_same_pressure_does_not_fail() -> None:
    run, found = experiment(Engine())
    assert found.verdict == "no-failure", shown(run)
    assert found.exercised
    assert run.cache.evicted > 0 and run.cache.full_by
    assert run.cache.after.capacity_tokens == 160
    assert run.ended == "full" and len(run.trials) < QUICK.limit
    assert run.cache.control_new_tokens is not None and run.cache.control_new_tokens <= 8


def test_the_control_arm_alone_is_no_all_clear() -> None:
    run, found = experiment(Engine(bug=True, blocks=5000), replace(QUICK, limit=60))
    assert found.verdict == "not-exercised", shown(run)
    assert "ever full" in " ".join(found.because)
    assert found.arms[1].hits > 0


def test_a_cache_that_is_off_is_not_exercised() -> None:
    run, found = experiment(Engine(blocks=0), replace(QUICK, limit=80))
    assert found.verdict == "not-exercised", shown(run)
    assert "is the prefix cache on" in found.because[0]


def test_nothing_tells_whether_there_was_a_hit() -> None:
    run, found = experiment(without(Engine(tells_usage=False), "/metrics"), replace(QUICK, limit=80))
    assert found.verdict == "not-exercised"
    assert "is not known" in found.because[0]
    assert run.bypass is not None and run.bypass.by == "prefix"
    assert {trial.hit for trial in run.trials} == {None}


def test_hits_are_seen_by_counters_alone() -> None:
    run, found = experiment(Engine(tells_usage=False))
    assert found.verdict == "no-failure", shown(run)
    asked = [trial for trial in run.trials if trial.kind == "reask"]
    assert all(trial.hit is not None and trial.cached_tokens is not None for trial in asked)
    assert not run.cache.shared


def test_hits_are_seen_by_the_answers_alone() -> None:
    run, found = experiment(without(Engine(), "/metrics"))
    assert found.verdict == "no-failure", shown(run)
    assert run.cache.before.family is None
    assert "evicted" in run.cache.full_by


def test_other_traffic_makes_counters_worthless_and_is_said() -> None:
    engine = Engine(tells_usage=False)

    def busy(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        found = engine(path, body, headers)
        engine.queries += 500
        return found

    run, found = experiment(busy, replace(QUICK, limit=60))
    assert run.cache.shared
    assert found.verdict == "not-exercised"
    assert {trial.hit for trial in run.trials if trial.kind == "reask"} == {None}


@pytest.mark.parametrize("bug", [False, True])
def test_a_salt_that_is_ignored_or_refused_becomes_a_prefix(bug: bool) -> None:
    """Behind a prefix the answers differ in words, so only gross failures are judged."""
    engine = Engine(bug=bug, heeds_salt=False)

    def refusing(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        return answer(400, error={"message": "extra fields not permitted: cache_salt"}) if "cache_salt" in body else engine(path, body, headers)

    for handler, says in ((engine, "takes no notice"), (refusing, "refuses cache_salt (400)")):
        engine.cache.clear()
        run, found = experiment(handler)
        assert run.bypass is not None and run.bypass.by == "prefix" and says in run.bypass.says
        assert found.verdict == ("reproduced" if bug else "no-failure"), shown(run)
        assert any("differently each time" in warning for warning in run.warnings)


def test_a_difference_that_does_not_come_again_is_noise() -> None:
    engine, count = Engine(), iter(range(10_000))

    def moody(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        is_odd = "completions" in path and next(count) % 9 == 8 and "cache_salt" not in body
        found = engine(path, body, headers)
        return said("Something else entirely, plausible all the same, of about that length", body, cached=16) if is_odd else found

    run, found = experiment(moody, replace(QUICK, limit=300))
    noise = [trial for trial in run.trials if trial.reproduced is False]
    assert noise, "no re-ask was answered otherwise: the test does not test"
    assert {trial.note for trial in noise} == {"asked again it was right"}
    assert found.arms[2].failures == 0 and found.verdict != "reproduced"


def test_an_endpoint_that_varies_is_said_and_only_gross_failures_count() -> None:
    engine, count = Engine(bug=True, bad="x"), iter(range(100_000))

    def varying(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        found = engine(path, body, headers)
        if "completions" not in path:
            return found
        words = [*prompt_of(body).split(), str(next(count))]
        return said(good_answer(words), body, prompt_tokens=20, cached=16)

    run, _ = experiment(varying, replace(QUICK, limit=80))
    assert not any(good.stable for good in run.good)
    assert len([warning for warning in run.warnings if "only gross failures are judged" in warning]) == len(FILE)
    assert not [trial for trial in run.trials if trial.suspicious], shown(run)


def test_a_model_that_answers_nothing_to_a_variant_is_not_the_cache() -> None:
    """Empty with and without the cache."""
    engine = Engine()

    def curt(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        found = engine(path, body, headers)
        is_known = "completions" not in path or prompt_of(body) in {item.plain() for item in FILE}
        return found if is_known else said("", body, prompt_tokens=20, cached=0 if "cache_salt" in body else 16)

    run, found = experiment(curt, replace(QUICK, limit=120))
    assert found.verdict != "reproduced", shown(run)
    assert {trial.note for trial in run.trials if trial.reproduced is False} == {"just the same with the cache bypassed"}


def tie(text: str, other: str, gap: float) -> dict[str, Any]:
    """Log-probabilities of a text of one token, and of another it could have been."""
    return {"logprobs": {"tokens": [text], "token_logprobs": [-0.7], "top_logprobs": [{text: -0.7, other: -0.7 - gap}]}}


@pytest.mark.parametrize(("gap", "verdict"), [(0.01, False), (2.0, True)])
def test_a_reproducible_difference_at_a_near_tie_is_noise(gap: float, verdict: bool) -> None:
    """The other answer comes with the cache only, every time, after a while."""
    engine, count = Engine(), iter(range(10_000))
    good, other = "Behind the old map in the harbour office.", "Under the lamp in the harbour office."

    def leaning(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        found = engine(path, body, headers)
        if "completions" not in path or prompt_of(body) != FILE[0].plain():
            return found
        late = next(count) > 8 and "cache_salt" not in body
        return said(other if late else good, body, prompt_tokens=20, cached=0 if "cache_salt" in body else 16, **(tie(good, other, gap) if body.get("logprobs") else {}))

    run, found = experiment(leaning, replace(QUICK, limit=60), prompts=FILE[:1])
    assert (found.verdict == "reproduced") is verdict, shown(run)
    told = {trial.note for trial in run.trials if trial.reproduced is False}
    assert told == (set() if verdict else {"it leaves the good answer where two tokens were equally likely"})


def test_a_hit_on_fresh_blocks_that_answers_otherwise_is_this_engines_way() -> None:
    """Same salt asked twice: the second is a hit on blocks nobody touched. What it says counts as good."""
    seen: set[str] = set()

    def two_ways(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        if "completions" not in path:
            return Engine()(path, body, headers)
        key = f"{body.get('cache_salt')} {prompt_of(body)}"
        hit = key in seen
        seen.add(key)
        return said("A plausible answer by way of the cache, in other words" if hit else "A plausible answer as newly computed", body, cached=16 if hit else 0)

    run, found = experiment(two_ways, replace(QUICK, limit=60))
    assert found.arms[2].failures == 0 and found.arms[0].failures == 0, shown(run)
    assert any("both count as good" in warning for warning in run.warnings)


def test_a_hit_path_that_is_broken_from_the_start_is_reproduced() -> None:
    """Hit wrong, miss right, whatever the pressure."""
    engine = Engine()

    def broken(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        before = engine.hits
        found = engine(path, body, headers)
        is_hit = engine.hits > before and "completions" in path
        return said("", body, prompt_tokens=20, cached=16) if is_hit else found

    run, found = experiment(broken)
    assert found.verdict == "reproduced", shown(run)
    assert found.arms[0].first_class == "empty"


def test_expectations() -> None:
    wrong = replace(FILE[0], expect="not to be found")
    right = replace(FILE[1], expect="The answer is")
    run, found = experiment(Engine(bug=True), prompts=(wrong, right))
    assert [good.expect_met for good in run.good] == [False, True]
    assert any("not met even with the cache bypassed" in warning for warning in run.warnings)
    assert found.verdict == "reproduced"


def test_variants_run_side_by_side_and_re_asks_alone() -> None:
    """Four variants are waited for by each other; whatever else is asked meets nobody."""
    engine, together, guard = Engine(), threading.Barrier(4), threading.Lock()
    inside: list[bool] = []
    met: list[list[bool]] = []

    def watched(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        is_question = "completions" in path
        is_variant = is_question and "cache_salt" not in body and prompt_of(body) != FILE[0].plain()
        if is_question:
            with guard:
                inside.append(is_variant)
                met.append(list(inside))
        if is_variant:
            together.wait(10)
        with guard:
            if is_question:
                inside.remove(is_variant)
            return engine(path, body, headers)

    with serving(watched, one_at_a_time=False) as server:
        endpoint = Endpoint(place_of(server.url), Wire(), 10)
        settings = replace(QUICK, control=4, every=4, limit=16, concurrency=4)
        run = Experiment(endpoint, "tiny", [], FILE[:1], settings, threading.Event()).run()
    assert [trial.variant for trial in run.trials if trial.kind == "variant"] == [*range(4), *range(4)]
    assert max(map(len, met)) == 4
    assert [group for group in met if len(group) > 1 and not all(group)] == [], "a re-ask was sent while variants were under way"


def test_token_ids_are_prompts_too() -> None:
    ids = Prompt(1, tokens=tuple(range(200, 240)))
    run, found = experiment(Engine(bug=True), prompts=(ids,))
    assert found.verdict == "reproduced", shown(run)


def test_a_wish_to_stop_ends_it_with_what_there_is() -> None:
    engine, stop, count = Engine(), threading.Event(), iter(range(10_000))

    def tired(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        if "completions" in path and next(count) == 30:
            stop.set()
        return engine(path, body, headers)

    run, found = experiment(tired, stop=stop)
    assert (run.ended, found.verdict) == ("interrupted", "not-exercised")
    assert 25 <= len(run.trials) <= 31


def test_the_same_seed_asks_the_same() -> None:
    asked = []
    for _ in range(2):
        with serving(Engine(bug=True)) as server:
            endpoint = Endpoint(place_of(server.url), Wire(), 10)
            Experiment(endpoint, "tiny", [], FILE, replace(QUICK, seed=3), threading.Event()).run()
            asked.append([prompt_of(body) for body in server.questions])
            body = server.questions[0]
    assert asked[0] == asked[1]
    assert (body["temperature"], body["seed"], body["max_tokens"], body["stream"], body["model"]) == (0, 3, 64, False, "tiny")
