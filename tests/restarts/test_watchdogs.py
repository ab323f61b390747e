"""Periods from many probes, rules completed by what they did, and the phase test with its limits."""

import random

import pytest

from diag.restarts import watchdogs
from diag.restarts.records import WatchRule
from tests.restarts.told import Row, asked, at, event, life, lines_of, request, rule, told


def regular(period: float, n: int, *, jitter: float = 0.0, holes: int = 0) -> list[float]:
    rng = random.Random(3)
    return [k * period + rng.uniform(-jitter, jitter) for k in range(n) if k not in rng.sample(range(1, n), holes)]


@pytest.mark.parametrize(("jitter", "holes"), [(0, 0), (10, 0), (10, 12)])
def test_a_period_is_found_through_jitter_and_holes(jitter: float, holes: int) -> None:
    found = watchdogs.period_of([at(second) for second in regular(300, 60, jitter=jitter, holes=holes)])
    assert found == pytest.approx(300, rel=0.05)


def test_traffic_has_no_period() -> None:
    rng = random.Random(5)
    moments = sorted(rng.uniform(0, 36000) for _ in range(200))
    assert watchdogs.period_of([at(second) for second in moments]) is None
    assert watchdogs.period_of([at(0), at(300), at(600)]) is None, "three probes are too few"


def test_probers_are_told_apart_by_what_they_send() -> None:
    rng = random.Random(1)
    probes = [request(second, 200, "/health", user_agent="kube-probe/1.31", client=f"10.0.0.1:{40000 + k}") for k, second in enumerate(regular(10, 90))]
    others = [request(second, 200, "/v1/models", user_agent="dog/1", client="10.0.0.9") for second in regular(60, 20)]
    load = [request(rng.uniform(0, 1000), 200, user_agent="httpx", client="10.0.0.20") for _ in range(100)]
    scraper = [request(second, 200, "/metrics", user_agent="Prometheus") for second in regular(15, 60)]
    found = told(host_events=asked(2000), http_events=[*probes, *others, *load, *scraper])["watchdogs"]
    assert {(row["what"], row["period_s"], row["n"]) for row in found} == {("GET /health", 10.0, 90), ("GET /v1/models", 60.0, 20)}
    assert all(row["restarts"] == 0 and row["basis"] == "measured" for row in found)


def failing(*kills: float) -> list[Row]:
    rows = []
    for kill in kills:
        rows += [event(kill - 1 - 300 * k, "probe_failed", "dog", origin="map", unit=None) for k in range(5)]
        rows += [event(kill, "restart", "dog", origin="map", unit=None), *asked(kill)]
    return rows


def test_period_and_strikes_of_a_watchdog_whose_owner_said_nothing() -> None:
    lines = [*life(), *lines_of(3000), *lines_of(9000)]
    (found,) = told(host_events=failing(3000, 9000), log_events=lines)["watchdogs"]
    assert [found[name] for name in ("initiator", "period_s", "strikes", "basis", "n", "restarts")] == ["dog", 300.0, 5, "measured", 10, 2]


def test_a_given_rule_is_kept() -> None:
    (found,) = told(host_events=failing(3000, 9000), watchdog_rules=[rule("dog", 280, 45, 4, "chat")])["watchdogs"]
    assert [found[name] for name in ("period_s", "timeout_s", "strikes", "basis")] == [280.0, 45.0, 4, "given"]


@pytest.mark.parametrize(("n", "p"), [(4, 0.0076), (5, 0.0016), (6, 3e-4), (8, 1.3e-5)])
def test_perfect_alignment_is_as_rare_as_the_tables_say(n: int, p: float) -> None:
    found = watchdogs.phase([at(900 * k) for k in range(n)], 300, 24)
    assert found.r == pytest.approx(1.0)
    assert found.p == pytest.approx(p, rel=0.15)


def test_few_restarts_or_hours_are_not_testable_and_it_says_so() -> None:
    assert watchdogs.phase([at(900 * k) for k in range(3)], 300, 24).says == "phase at 300 s: not testable (n = 3, 4 needed)"
    assert watchdogs.phase([at(900 * k) for k in range(8)], 300, 2).says == "phase at 300 s: not testable (T = 2.0 h, 6 h needed)"


def test_the_phase_test_keeps_its_level() -> None:
    rng = random.Random(11)
    found = [watchdogs.phase([at(rng.uniform(0, 86400)) for _ in range(6)], 300, 24).p for _ in range(2000)]
    assert 0.03 < sum(p is not None and p < 0.05 for p in found) / len(found) < 0.07


def test_all_tests_that_were_made_are_corrected() -> None:
    aligned = watchdogs.phase([at(900 * k) for k in range(5)], 300, 24)
    spread = watchdogs.phase([at(second) for second in (0, 100, 250, 370)], 300, 24)
    found = watchdogs.holm({"a": aligned, "b": spread, "c": watchdogs.phase([at(0)], 300, 24)})
    assert aligned.p is not None
    assert found["a"].p == pytest.approx(2 * aligned.p)
    assert "n = 5, T = 24.0 h" in found["a"].says
    assert "Holm over 2" in found["a"].says
    assert "not testable" in found["c"].says


@pytest.mark.parametrize(
    ("what", "counts", "status"),
    [
        ("500s in the access log", True, 500), ("5xx", True, None), ("errors in the engine log", True, None), ("a chat request", False, None),
        ("http-get http://:8000/health", False, None), ("GET /v1/models", False, None), ("502 of nginx", True, 502), ("not known", False, None),
    ],
)  # fmt: skip
def test_what_a_watchdog_looks_at(what: str, counts: bool, status: int | None) -> None:
    given = WatchRule("w", what, "s")
    assert watchdogs.counts_errors(given) is counts
    if counts:
        assert watchdogs.counted_status(given) == status


def test_a_rule_for_a_unit_is_that_unit_s() -> None:
    rules = {("kubelet (liveness probe)", unit): watchdogs.Known(WatchRule("kubelet (liveness probe)", "x", "s", period), "given", 0) for unit, period in (("a/server", 10), ("b/server", 30))}
    found = watchdogs.rule_for(rules, "kubelet (liveness probe)", "b/server")
    assert found is not None
    assert found.period_s == 30
    assert watchdogs.rule_for(rules, "kubelet (liveness probe)", "c/server") is None
    assert watchdogs.rule_for(rules, None, "a/server") is None
