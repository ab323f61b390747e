"""What was seen around a recovery: weights and caches of the start, queues, clients and the router after it."""

import pytest

from diag.recovery import facts
from diag.recovery.aftermath import points
from diag.recovery.facts import Around, Fact
from diag.recovery.records import Event, Request, Sample
from tests.recovery.logs import at, lines, only, sglang, vllm
from tests.recovery.test_incidents import event, stats


def around(text: str = "", *, start: str = "", requests: list[Request] | None = None, events: list[Event] | None = None, samples: list[Sample] | None = None, until: str | None = None) -> dict[str, Fact]:
    """Facts of a recovery that began at ten and was ready at 10:01."""
    found = lines(text)
    begun = None if not start else only(start)
    seen = Around(at("10:00:00"), at("10:01:00"), None if until is None else at(until), begun, found, points(found, samples or []), events or [], requests or [], samples or [])
    return {fact.fact: fact for fact in facts.facts(seen)}


def post(clock: str, status: int | None = 200, seconds: float | None = 1.0, **more: object) -> Request:
    return Request(at(clock), "POST", "/v1/chat/completions", status, f"access.log:{clock}", seconds, **{"proxied": True, **more})  # type: ignore[arg-type]


HEAD = "10:00:05 non-default args: {}", "10:00:09 Starting to load model m..."


@pytest.mark.parametrize(
    ("seconds", "rate", "says"),
    [(168.0, 0.091, "1 Gbit/s"), (20.0, 0.76, "10 Gbit/s"), (5.8, 2.6, "NVMe"), (1.5, 10.2, "memory")],
)
def test_how_fast_weights_came(seconds: float, rate: float, says: str) -> None:
    text = vllm(*HEAD, f"10:00:59 Loading weights took {seconds} seconds", "10:00:59 Model loading took 15.27 GiB memory and 170 seconds")
    found = around(start=text)
    assert found["weights_gib"].value == 15.27
    assert found["weights_gib_per_s"].value == pytest.approx(rate, rel=0.02)
    assert says in found["weights_gib_per_s"].says


@pytest.mark.parametrize(("name", "network"), [("NFS", 1.0), ("fuse.s3fs", 1.0), ("LUSTRE", 1.0), ("EXT4", 0.0), ("XFS", 0.0), ("overlay", 0.0)])
def test_where_the_files_lie(name: str, network: float) -> None:
    text = vllm(*HEAD, f"10:00:10 Filesystem type for checkpoints: {name}. Checkpoint size: 15.27 GiB. Available RAM: 20.61 GiB.")
    found = around(start=text)["weights_on_network"]
    assert found.value == network
    assert f"lie on {name}," in found.says


def test_a_download_and_a_prefetch() -> None:
    text = vllm(*HEAD, "10:00:20 Time spent downloading weights for m: 11.000000 seconds", "10:00:30 Prefetching checkpoint files into page cache finished in 9.50s")
    found = around(start=text)
    assert (found["weights_download_s"].value, found["weights_prefetch_s"].value) == (11.0, 9.5)


def test_sglang_tells_the_size_and_no_seconds_of_reading() -> None:
    text = sglang("10:00:05 - server_args=ServerArgs(model_path='m')", "10:00:09 TP0 Load weight begin. avail mem=79.00 GB",
                  "10:00:40 TP0 Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=64.00 GB, mem usage=14.99 GB.")  # fmt: skip
    found = around(start=text)
    assert found["weights_gib"].value == 14.99
    assert "weights_gib_per_s" not in found


def test_a_cold_and_a_warm_compile_cache() -> None:
    folder = "10:00:30 Using cache directory: /home/serve/.cache/vllm/torch_compile_cache/ab/rank_0_0/backbone for vLLM's torch.compile"
    cold = around(start=vllm(*HEAD, folder, "10:00:50 Compiling a graph for compile range (1, 8192) takes 20.00 s", "10:00:55 Compiling a graph for compile range (8192, 9000) takes 4.00 s"))
    assert cold["compiled"].value == 2.0
    assert cold["compiled"].says == "graphs that were compiled anew: 2, the slowest in 20.0 s"
    assert cold["compile_cache_dir"].says.startswith("/home/serve/.cache/vllm")
    assert "compile_cached" not in cold
    warm = around(start=vllm(*HEAD, folder, "10:00:33 Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.5 s"))
    assert (warm["compile_cached"].value, "compiled" in warm) == (1.0, False)


def test_the_queue_before_and_in_the_first_minute() -> None:
    text = vllm(stats("09:49:00", wait=99), stats("09:55:00", wait=3), stats("09:59:00", wait=2), stats("10:01:10", run=32, wait=60), stats("10:01:30", run=40, wait=10), stats("10:02:10", wait=500))
    found = around(text)
    assert [found[name].value for name in ("waiting_before", "waiting_after", "running_after")] == [3.0, 60.0, 32.0]
    assert found["waiting_after"].ts == at("10:01:10")
    assert "waiting_after" not in around(text, until="10:01:05")


def test_preemptions_in_lines_or_counted() -> None:
    line = vllm("10:01:20 Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.")
    assert around(line)["preempted"].value == 1.0
    assert "preempted" not in around(line.replace("10:01:20", "10:03:20"))
    reads = [Sample(at(clock), "vllm:num_preemptions_total", "{}", value, f"m:{clock}") for clock, value in (("09:58:00", 90.0), ("10:02:00", 4.0))]
    assert around(samples=reads)["preempted"].value == 4.0


def test_the_first_user_is_counted_from_when_the_request_began() -> None:
    """A long answer is no late one."""
    assert around(requests=[post("10:01:40", seconds=35.0)])["first_user"].value == 5.0
    assert around(requests=[post("10:01:40", seconds=50.0, first_byte_s=11.0)])["first_user"].value == 1.0
    assert around(requests=[post("10:01:40", seconds=50.0)])["first_user"].value == 40.0, "where it waited before ready is not told"
    assert around(requests=[post("10:01:40", seconds=50.0, queue_s=25.0)])["first_user"].value == 15.0, "the proxy kept it"
    assert around(requests=[post("10:01:20", seconds=2.0), post("10:01:40", seconds=35.0)])["first_user"].value == 5.0


def test_what_users_got_until_then() -> None:
    found = around(requests=[post("10:00:30", 503), post("10:01:10", 503), post("10:01:20", 502), post("10:01:30"), post("10:01:40", 503)])
    assert found["refused"].value == 2.0
    assert "502, 503" in found["refused"].says
    assert found["refused"].source == "access.log:10:01:10"
    own = around(requests=[post("10:01:30", proxied=False)])
    assert "refused" not in own, "the engine's own log does not see what a router refuses"


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({"code": 240}, 240.0), ({"detail": "09:30:38 admitting 30%"}, 30.0), ({"detail": "2026-06-10 09:30:38 released 17 queued requests"}, 17.0),
        ({"detail": "opened"}, None),
    ],
)  # fmt: skip
def test_numbers_of_a_router(more: dict[str, object], value: float | None) -> None:
    found = around(events=[event("10:01:01", "admitted_pct", **more)])
    assert found["admitted_pct"].value == value


def test_a_drain_before_ready_is_not_what_users_waited_for() -> None:
    events = [event("10:00:30", "drain_done", detail="old"), event("10:01:50", "traffic_switch", detail="new")]
    found = around(events=events, requests=[post("10:02:00")])
    assert "drain_done" not in found
    assert found["traffic_switch"].value == 50.0


@pytest.mark.parametrize(
    ("request_", "gone"),
    [
        (post("10:01:30", 499), True), (post("10:01:30", 200, ended="CD--"), False), (post("10:01:30", None, ended="CQ--"), True), (post("10:01:30", 504, ended="sH--"), False),
        (post("10:01:30", 408, ended="cR--"), True), (post("10:01:30", 200, ended="----"), False), (post("10:01:30", 503, ended="sQ--"), False),
    ],
)  # fmt: skip
def test_who_gave_up(request_: Request, gone: bool) -> None:
    assert facts.given_up(request_) is gone


def test_clients_that_left_and_how_long_others_waited() -> None:
    before = [post("09:59:00"), post("09:59:10", 499, 3.0)]
    after = [post("10:01:20", 499, 30.0), post("10:01:25", 499, 30.0), post("10:01:30", 499, 12.0), post("10:01:40", 200, 46.0, queue_s=44.0, first_byte_s=45.0), post("10:04:00", 499)]
    found = around(requests=[*before, *after])
    assert [found[name].value for name in ("left_before", "left_before_pct", "left_after", "left_after_pct", "patience_s", "waited_s")] == [1.0, 50.0, 3.0, 75.0, 30.0, 44.0]
    assert found["timed_out"].value == 3.0


def test_clients_of_a_first_start_had_not_been_served_before() -> None:
    after = [post("10:01:20", 499, 30.0), post("10:01:40", 200, 46.0)]
    seen = Around(at("10:00:00"), at("10:01:00"), None, None, [], [], [], after, [], first=True)
    assert {fact.fact for fact in facts.facts(seen)} & {"left_after", "patience_s", "waited_s", "timed_out"} == set()


def test_an_answer_that_nobody_read() -> None:
    unread = [post("10:01:30", 200, 40.0, ended="CD--", queue_s=38.0, first_byte_s=1.999), post("10:01:40", 200, 41.0, ended="CD--", queue_s=38.0, first_byte_s=0.5)]
    found = around(requests=unread)
    assert (found["answered_for_nobody"].value, found["left_after"].value) == (1.0, 1.0), "the second one was read for two seconds"


def test_a_supervisor_that_waits_on_purpose() -> None:
    found = around(events=[event("10:00:20", "back_off", initiator="kubelet", detail="BackOff: Back-off restarting failed container")])
    assert found["back_off"].value == 20.0
    assert "back_off" not in around(events=[event("09:00:20", "back_off")])


def test_nothing_is_said_of_what_never_was_ready() -> None:
    seen = Around(at("10:00:00"), None, None, None, (), (), (), [post("10:02:00")], ())
    assert facts.facts(seen) == []
