"""Was it working when it was ended: witnesses inside the window of who ended it, and what they cannot tell."""

import pytest

from diag.restarts import progress_before
from diag.restarts.records import Line, WatchRule
from tests.restarts.told import Row, asked, at, event, life, line, lines_of, request, rule, stats, told

CHAT = rule("chat-dog", 300, 45, 5, "a chat request")
LIVENESS = rule("kubelet (liveness probe)", 10, 1, 3, "http-get http://:8000/health")


def moved(lines: list[Row], *, by: Row = CHAT, **more: list[Row]) -> dict[object, object]:
    """Witness -> moved, of one end at second 0 by that watchdog."""
    own = event(0, "killing", str(by["initiator"]))
    rows = {"host_events": [own, *asked(0, str(by["initiator"]))], "log_events": [*life(), *lines, *lines_of(0)], "watchdog_rules": [by], **more}
    return {row["witness"]: row["moved"] for row in told(**rows)["restart_progress"]}


def flat(first: int, last: int = 0, kv_pct: float = 30.0) -> list[Row]:
    return [stats(second, 0.0, kv_pct=kv_pct) for second in range(first, last, 10)]


def test_tokens_until_the_end() -> None:
    assert moved([stats(second, 30.0) for second in range(-1300, 0, 10)]) == {"engine_stats": True}


def test_a_long_prompt_moves_the_kv_usage_only() -> None:
    assert moved([stats(second, 0.0, kv_pct=30 + (300 + second) / 100) for second in range(-300, 0, 10)]) == {"engine_stats": True}


def test_nothing_moved_in_the_whole_window() -> None:
    assert moved(flat(-1300)) == {"engine_stats": False}


def test_what_moved_at_the_beginning_of_the_window_may_have_stuck_since() -> None:
    assert moved([*[stats(second, 30.0) for second in range(-1200, -600, 10)], *flat(-600)]) == {"engine_stats": None}


def test_progress_before_the_first_failed_look_is_no_defence() -> None:
    """The kubelet ends after 21 s: what moved 30 s before was before it looked."""
    assert moved([*[stats(second, 30.0) for second in range(-600, -29, 10)], *flat(-20)], by=LIVENESS)["engine_stats"] is not True
    assert moved([stats(second, 30.0) for second in range(-600, 0, 10)], by=LIVENESS) == {"engine_stats": True}


def test_an_idle_engine_is_neither_working_nor_stuck() -> None:
    assert moved([stats(second, 0.0, running=0) for second in range(-1300, 0, 10)]) == {"engine_stats": None}


def test_silence_is_neither() -> None:
    assert moved([stats(-2000, 30.0)]) == {"engine_stats": None}
    assert moved([]) == {}


def test_answers_to_others_count_light_ones_and_failures_do_not() -> None:
    light = [request(second, 200, path) for second in range(-100, 0, 10) for path in ("/health", "/v1/models", "/metrics")]
    failed = [request(second, 500) for second in range(-100, 0, 10)]
    assert moved([], http_events=[*light, *failed]) == {}
    assert moved([], http_events=[request(-20, 200)]) == {"answers": True}
    assert moved([], http_events=[request(-400, 200)]) == {"answers": None}


def test_answers_of_another_server_behind_the_proxy_acquit_nobody() -> None:
    two = [request(-20 - n, 200, origin="haproxy", backend=f"vllm/gpu-{n % 2}") for n in range(6)]
    assert moved([], http_events=two) == {}
    assert moved([], http_events=[{**row, "backend": "vllm/gpu-0"} for row in two]) == {"answers": True}


def test_counters_read_in_the_window() -> None:
    reads = [{"read": n, "ts": at(-60 + 20 * n), "target": "x:8000", "name": "vllm:generation_tokens_total", "labels": "{}", "value": 100.0 + n, "source": f"m:{n}"}
             for n in range(3)]  # fmt: skip
    assert moved([], metrics=reads) == {"metrics": True}
    assert moved([], metrics=[{**row, "value": 100.0} for row in reads]) == {"metrics": None}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ((300, 45, 5, "a chat request"), 1245), ((10, 1, 3, "http-get /health"), 21), ((600, 10, 20, "500s in the access log"), 600), ((None, None, 5, "?"), 60),
        ((180, 180, 1, "sd_notify"), 180), ((5, 1, 1, "GET /health"), 20), ((3600, 60, 5, "a chat request"), 1800),
    ],
)  # fmt: skip
def test_the_window_is_that_of_the_one_who_decides(given: tuple[float | None, float | None, int, str], seconds: float) -> None:
    period_s, timeout_s, strikes, what = given
    assert progress_before.window_s(WatchRule("w", what, "s", period_s, timeout_s, strikes)) == seconds


def test_a_batch_of_sglang_is_progress_and_its_usage_a_share() -> None:
    def read(message: str) -> progress_before.Stats:
        return progress_before.stats_of(Line(at(0), "engine_stats", message, "s"))

    decode = read("Decode batch. #running-req: 4, #token: 1234, token usage: 0.25, gen throughput (token/s): 61.50, #queue-req: 3")
    assert (decode.running, decode.kv_usage_pct, decode.tokens_per_s) == (4, 25.0, 61.5)
    prefill = read("Prefill batch. #new-seq: 1, #new-token: 4096, #cached-token: 0, token usage: 0.10, #running-req: 2, #queue-req: 0")
    assert (prefill.running, prefill.batch) == (2, True)
    vllm = read("Engine 000: Avg prompt throughput: 109.3 tokens/s, Avg generation throughput: 115.4 tokens/s, Running: 6 reqs, Waiting: 0 reqs, CPU KV cache usage: 1.2%")
    assert (vllm.running, vllm.kv_usage_pct, vllm.tokens_per_s) == (6, 1.2, pytest.approx(224.7))


def test_a_person_s_restart_has_witnesses_too_but_no_window_of_its_own() -> None:
    rows = {"host_events": asked(0, "dana"), "log_events": [*life(), *[stats(second, 30.0) for second in range(-100, 0, 10)], line(1, "shutdown_signal")]}
    assert [(row["window_s"], row["moved"]) for row in told(**rows)["restart_progress"]] == [(60.0, True)]
