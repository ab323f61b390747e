"""Would the next restart have come without this one: rules replayed, and what keeps a replay from telling."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.restarts import replay
from diag.restarts.records import Restart, WatchRule
from diag.restarts.replay import Error
from tests.restarts.told import Row, asked, at, event, life, line, lines_of, request, rule, told

COUNTER = rule("counter", 600, None, 10, "500s in the access log")
CHAT = rule("chat-dog", 300, 45, 5, "a chat request")


def links(by: Row, *, errors: list[Row] | None = None, failures: list[Row] | None = None, second: float = 500, ready_s: float | None = 200) -> list[dict[str, object]]:
    """Two restarts, the second by that watchdog."""
    who = str(by["initiator"])
    rows = [*asked(0, "dana"), *asked(second, who), *(failures or [])]
    lines = [*life(), *lines_of(0, ready_s), *lines_of(second)]
    return told(host_events=rows, log_events=lines, http_events=errors or [], watchdog_rules=[by])["restart_links"]


def link(by: Row, **more: object) -> tuple[object, object, object, object]:
    (found,) = links(by, **more)  # type: ignore[arg-type]
    return found["causal"], found["errors_before"], found["errors_without"], found["missing"]


def test_errors_of_the_restart_alone_make_a_link() -> None:
    assert link(COUNTER, errors=[request(1, 500) for _ in range(12)]) == (True, 12, 0, None)


def test_enough_errors_without_it_make_none() -> None:
    assert link(COUNTER, errors=[request(second, 500) for second in [*range(1, 6), *range(300, 320)]]) == (False, 25, 20, None)


@pytest.mark.parametrize(("others", "causal"), [(9, True), (10, False)])
def test_one_error_more_decides(others: int, causal: bool) -> None:
    errors = [request(1, 500)] * 5 + [request(300 + n, 500) for n in range(others)]
    assert link(COUNTER, errors=errors)[:3] == (causal, 5 + others, others)


def test_errors_that_the_rule_does_not_count() -> None:
    assert link(COUNTER, errors=[request(1, 502) for _ in range(20)]) == (None, 0, None, "http_events")
    assert link({**COUNTER, "what": "5xx in the access log"}, errors=[request(1, 502) for _ in range(20)])[:2] == (True, 20)


def test_errors_older_than_its_period_are_not_counted() -> None:
    assert link(COUNTER, errors=[request(1, 500) for _ in range(12)], second=700) == (None, 0, None, "http_events")


def probes(*seconds: float) -> list[Row]:
    return [event(second, "probe_failed", "chat-dog", origin="map", unit=None) for second in seconds]


def test_probes_that_failed_while_it_was_loading() -> None:
    short = {**CHAT, "period_s": 30.0, "timeout_s": 5.0, "strikes": 3}
    assert link(short, failures=probes(60, 90, 120), second=121, ready_s=None) == (True, 3, 0, None)
    assert link(short, failures=probes(60, 90, 120), second=121) == (True, 3, 0, None)


def test_probes_that_failed_long_after_ready_are_not_its_doing() -> None:
    assert link(CHAT, failures=probes(745, 1045, 1345, 1645, 1945), second=1946) == (False, 5, 5, None)


def test_a_probe_sent_before_ready_is_its_doing_though_it_timed_out_later() -> None:
    assert link({**CHAT, "strikes": 1}, failures=probes(230), second=231) == (True, 1, 0, None)


def test_a_look_that_was_fine_ends_the_row() -> None:
    """Failures at 60 and 360, a fine look at 660, then five: those five are the row."""
    assert link(CHAT, failures=probes(60, 360, 945, 1245, 1545, 1845, 2145), second=2146)[:3] == (False, 5, 5)


def test_a_watchdog_may_say_restarting_instead_of_its_last_failure() -> None:
    short = {**CHAT, "period_s": 30.0, "timeout_s": 5.0, "strikes": 3}
    assert link(short, failures=probes(60, 90), second=121)[0] is True


def test_failures_that_are_missing_leave_it_open() -> None:
    assert link(CHAT, failures=probes(60), second=121) == (None, 1, None, "http_events")
    assert link(CHAT, second=121) == (None, None, None, "host_events")


def test_an_unknown_rule_leaves_it_open_and_a_person_does_not() -> None:
    rows = [*asked(0), *asked(500), *asked(900, "dana")]
    rows = [{**row, "detail": "dana : TTY=pts/0 ; COMMAND=systemctl"} if row["initiator"] == "dana" else row for row in rows]
    found = told(host_events=rows, log_events=[*life(), *lines_of(0), *lines_of(500), *lines_of(900)])["restart_links"]
    assert [(row["causal"], row["missing"]) for row in found] == [(None, "watchdog_rules"), (False, None)]


def test_the_next_one_died_by_itself() -> None:
    rows = [*asked(0), event(500, "exit", None, code=1), event(503, "restart", "systemd"), event(503, "start", "systemd")]
    (found,) = told(host_events=rows, log_events=[*life(), *lines_of(0), line(500, "fatal"), line(510, "startup")])["restart_links"]
    assert (found["causal"], found["missing"]) == (False, None)


def test_when_it_was_ready_is_not_known() -> None:
    """Without an engine log the first success in the access log tells; without that nothing does."""
    rows = [*asked(0), *asked(500, "counter")]
    errors = [request(1, 500) for _ in range(12)]
    (open_,) = told(host_events=rows, http_events=errors, watchdog_rules=[COUNTER])["restart_links"]
    assert (open_["causal"], open_["missing"]) == (None, "log_events")
    (told_,) = told(host_events=rows, http_events=[*errors, request(150, 200)], watchdog_rules=[COUNTER])["restart_links"]
    assert told_["causal"] is True


def test_errors_of_earlier_restarts_are_restarts_errors_too() -> None:
    """Two restarts left six errors each; the counter needs ten: this one's alone do not explain it, both do."""
    rows = [*asked(0, "dana"), *asked(300, "dana"), *asked(550, "counter")]
    errors = [request(1, 500)] * 6 + [request(301, 500)] * 5 + [request(540, 500)] * 5
    lines = [*life(), *lines_of(0), *lines_of(300), *lines_of(550)]
    found = told(host_events=rows, log_events=lines, http_events=errors, watchdog_rules=[{**COUNTER, "strikes": 6}])["restart_links"][-1]
    assert (found["causal"], found["errors_before"], found["errors_without"]) == (True, 16, 5)
    assert "of restarts before it" in str(found["says"])


def quarters(first: int, last: int) -> "st.SearchStrategy[float]":
    """Seconds that a time of microseconds holds exactly: on a border nothing may depend on rounding."""
    return st.integers(first * 4, last * 4).map(lambda number: number / 4)


@settings(max_examples=300, deadline=None)
@given(moments=st.lists(quarters(0, 600), max_size=40), strikes=st.integers(1, 20), down=quarters(0, 300), load=quarters(1, 250))
def test_replaying_never_invents_errors(moments: list[float], strikes: int, down: float, load: float) -> None:
    """Causal just when the rule fires with all errors and not without those between signal and ready."""
    this = Restart("u", "s", killed_at=at(down), ready_at=at(down + load), how="external")
    after = Restart("u", "s", killed_at=at(600), how="external", initiator="w", who="watchdog")
    errors = [Error(at(moment), at(moment), "s") for moment in moments]
    found = replay.link(this, after, WatchRule("w", "500s", "s", 600, None, strikes), [], lambda begin, end, status: errors, log_seen=True)
    outside = sum(not (down - 1 <= moment < down + load) for moment in moments)
    if len(moments) < strikes:
        assert found.causal is None
    else:
        assert (found.causal, found.before, found.without) == (outside < strikes, len(moments), outside)


def test_words_leave_out_what_is_not_known() -> None:
    assert replay.words(WatchRule("w", "GET /health", "s"), False) == "an unknown number of failures in a row (GET /health)"
    assert replay.words(WatchRule("w", "500s", "s", 600, None, 10), True) == "10 errors (500s) within 600 s"


def between_quiet(strikes: int | None, what: str = "500s in the access log", left: int = 12, others: int = 0) -> dict[str, object]:
    """A restart that left errors, a second one that left none, and the counter whose rule looks back over both."""
    rows = [*asked(0, "dana"), *asked(280, "dana"), *asked(550, "counter")]
    errors = [request(1, 500)] * left + [request(530, 500)] * others
    lines = [*life(), *lines_of(0), *lines_of(280), *lines_of(550)]
    by = {**COUNTER, "strikes": strikes, "what": what}
    return told(host_events=rows, log_events=lines, http_events=errors, watchdog_rules=[by])["restart_links"][-1]


def test_a_restart_that_left_nothing_does_not_hide_the_one_before_it() -> None:
    found = between_quiet(10)
    assert (found["causal"], found["errors_before"], found["errors_without"]) == (True, 12, 0)
    assert str(found["says"]).startswith("0 of 12 fall between its signal and ready, 12 more are of restarts before it")
    assert found["source"] == "access.log:1"


@pytest.mark.parametrize(("others", "causal"), [(9, True), (10, False)])
def test_errors_of_nobody_s_restart_decide_there_too(others: int, causal: bool) -> None:
    assert between_quiet(10, others=others)["causal"] is causal


def test_a_rule_of_unknown_strikes_stays_open_there_too() -> None:
    found = between_quiet(None, others=3)
    assert (found["causal"], found["missing"]) == (None, "watchdog_rules")
    assert between_quiet(None)["causal"] is True
