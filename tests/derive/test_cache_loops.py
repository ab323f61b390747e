"""Threads that read a cache for ever, recognised by shape, and the key one of their frames never lets go of."""

import datetime
from collections.abc import Sequence

import pytest

from diag.derive import cache_loops
from tests.derive.frames import Row, derived, stack

START = datetime.datetime(2026, 11, 30, 2, 54, 39)
KEY = "clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6"
OTHER = "clip-vit-b-32:image:e4d909c290d0fb1ca068ffaddf22cbd0"
SEND = "main > serve > retry > encode > lookup > get@redis/client.py > send@redis/connection.py"
RECV = "main > serve > retry > encode > lookup > get@redis/client.py > recv@redis/connection.py"
FORWARD = "main > serve > retry > forward"
IDLE = "main > serve > get@queue.py"
WAIT = "main > serve > retry > pause"


def stacks(*texts: str, **more: object) -> list[Row]:
    """One stack a second."""
    return [
        row for number, text in enumerate(texts)
        for row in stack(text, number, **{"ts": START + datetime.timedelta(seconds=number), **more})  # type: ignore[arg-type]
    ]


def hot(kind: str | None = "poll", tid: int = 11, **more: object) -> Row:
    return {"pid": 10, "tid": tid, "class": kind, "runnable_pct": 40.0, "vol_per_s": 900.0, "source": "tasks-1.jsonl:2", **more}


def loops(**rows: Sequence[Row]) -> list[dict[str, object]]:
    return derived(cache_loops, **{"thread_activity": [hot()], "collected": [asked()], **rows})["cache_loops"]


def asked(status: str = "ok") -> Row:
    """Whether the cache was asked for the keys that threads hold."""
    return {"collector": "redis", "table_name": "cache_keys", "status": status}


def local(sample: int, text: str, place: str = "encode", *, stack: str = SEND, tid: int = 11, **more: object) -> Row:
    """A variable of the frame `place` of `stack`, as stack_locals has it."""
    frames = [part.strip().partition("@") for part in stack.split(" > ")]
    at = next(n for n, (func, _, _) in enumerate(frames) if func == place)
    return {
        "sample": sample, "ts": START + datetime.timedelta(seconds=sample), "pid": 10, "tid": tid, "thread": "worker-0",
        "depth": len(frames) - 1 - at, "func": place, "file": frames[at][2] or "app.py", "line": 70 + sample, "var": "key", "repr": text,
        "is_arg": True, "cut": False, "is_text": True, "source": f"stacks/{sample}.json#locals", **more,
    }


def held(locals_: Sequence[Row], *texts: str, **more: object) -> list[dict[str, object]]:
    frames = stacks(*texts or (SEND, FORWARD, SEND), **more)
    return derived(cache_loops, thread_activity=[hot()], stack_frames=frames, stack_locals=locals_)["held_keys"]


def test_a_cache_read_below_a_caller_it_never_leaves_is_a_loop() -> None:
    (found,) = loops(stack_frames=stacks(SEND, FORWARD, RECV))
    assert (found["ancestor"], found["ancestor_file"], found["chain"]) == ("retry", "app.py", "get <- lookup <- encode <- retry")
    assert (found["samples"], found["of"], found["reads"], found["seen_in"], found["peer"]) == (3, 3, 2, "stacks", None)
    assert (found["bundle"], found["host"], found["capture"], found["pid"], found["tid"]) == ("b", "h", "1", 10, 11)
    assert (found["thread"], found["class"], found["runnable_pct"], found["vol_per_s"]) == ("worker-0", "poll", 40.0, 900.0)


@pytest.mark.parametrize(("call", "expected"), [("incr", 0), ("llen", 0), ("brpop", 0), ("get", 1), ("mget", 1), ("hgetall", 1)])
def test_counting_and_queueing_are_no_cache_reads(call: str, expected: int) -> None:
    """Also not where system calls show that it talks to the server."""
    busy = f"main > serve > poll > {call}@redis/commands/core.py > execute_command@redis/client.py"
    found = loops(stack_frames=stacks(busy, WAIT, busy), thread_states=[waiting()], sockets=[socket()])
    assert len(found) == expected


def test_inside_the_client_in_every_sample_the_caller_of_the_client_is_the_ancestor() -> None:
    (found,) = loops(stack_frames=stacks(SEND, SEND, SEND))
    assert (found["ancestor"], found["chain"], found["reads"]) == ("lookup", "get <- lookup", 3)


@pytest.mark.parametrize(("kind", "expected"), [("spin", 1), ("poll", 1), ("active", 0), ("parked", 0), ("stopped", 0), (None, 0)])
def test_only_hot_threads_loop(kind: str | None, expected: int) -> None:
    assert len(loops(thread_activity=[hot(kind)], stack_frames=stacks(SEND, FORWARD))) == expected


@pytest.mark.parametrize("texts", [
    (SEND,),
    (FORWARD, FORWARD, FORWARD),
    ("_bootstrap > run > get@redis/client.py", "_bootstrap > run > step"),
    ("<module> > get@redis/client.py", "<module> > step"),
    ("run@a.py > get@redis/client.py", "run@b.py > get@redis/client.py"),
    (SEND.replace("redis/", "myredis/"), FORWARD, SEND.replace("redis/client.py", "redis_tools.py").replace("redis/connection.py", "x.py")),
], ids=["one sample", "no cache", "only the entry in common", "only the module in common", "nothing in common", "not a client's folder"])
def test_what_is_no_loop(texts: tuple[str, ...]) -> None:
    assert loops(stack_frames=stacks(*texts)) == []


@pytest.mark.parametrize("file", [
    "redis/client.py", "/opt/venv/lib/python3.11/site-packages/redis/asyncio/client.py", "valkey/connection.py", "site-packages/coredis/pool.py",
    "aioredis/client.py", "rediscluster/client.py", "django_redis/cache.py", "aiocache/base.py", "pymemcache/client/base.py", "glide/glide_client.py",
])
def test_clients_are_known_by_their_folder(file: str) -> None:
    (found,) = loops(stack_frames=stacks(f"main > retry > get@{file}", "main > retry > compute"))
    assert (found["ancestor"], found["reads"]) == ("retry", 1)


@pytest.mark.parametrize("how", [{"whole": False}, {"whole": None}])
def test_torn_stacks_do_not_break_a_loop(how: dict[str, object]) -> None:
    torn = stack("lookup > get@redis/client.py", 3, **how)  # type: ignore[arg-type]
    (found,) = loops(stack_frames=[*stacks(SEND, FORWARD, RECV), *torn])
    assert (found["ancestor"], found["samples"], found["of"], found["reads"]) == ("retry", 3, 4, 2)


def test_native_frames_do_not_break_a_loop() -> None:
    rows = [{**row, "depth": int(str(row["depth"])) + 1} for row in stacks(SEND, RECV)]
    native = [*stack("poll", 0, native=True, file="libc.so.6"), *stack("recv", 1, native=True, file="libc.so.6")]
    (found,) = loops(stack_frames=[*rows, *native])
    assert (found["ancestor"], found["reads"]) == ("lookup", 2)


def test_each_thread_loops_for_itself() -> None:
    frames = [*stacks(SEND, FORWARD), *stacks(FORWARD, FORWARD, tid=12), *stacks(RECV, RECV, tid=13), *stacks(SEND, SEND, capture="2")]
    found = loops(thread_activity=[hot(tid=tid) for tid in (11, 12, 13)], stack_frames=frames)
    assert [(row["tid"], row["capture"]) for row in found] == [(11, "1"), (13, "1")]


def waiting(peer: str | None = "127.0.0.1:6379", hits: int | None = 7, **more: object) -> Row:
    return {"pid": 10, "tid": 11, "sys_no": 45, "fd": 9, "peer": peer, "hits": hits, "read": 1, **more}


def socket(raddr: str | None = "127.0.0.1", rport: int | None = 6379, kind: str | None = "redis") -> Row:
    return {"pid": 10, "fd": 9, "raddr": raddr, "rport": rport, "state": "ESTABLISHED", "peer_kind": kind, "read": 0}


LISTENING = socket(raddr=None, rport=None, kind=None)
TO_UNIX = socket("/run/redis.sock", None)


@pytest.mark.parametrize(("states", "sockets", "expected"), [
    ([waiting()], [socket()], ("127.0.0.1:6379", 7)),
    ([waiting(), waiting(hits=5, sys_no=44), waiting(None, 90)], [socket(), LISTENING], ("127.0.0.1:6379", 12)),
    ([waiting("::1:6379")], [socket("::1")], ("::1:6379", 7)),
    ([waiting("/run/redis.sock")], [TO_UNIX], ("/run/redis.sock", 7)),
    ([waiting("/run/redis.sock")], [TO_UNIX, LISTENING, socket()], ("/run/redis.sock", 7)),
    ([waiting(hits=None), waiting(hits=2)], [socket()], ("127.0.0.1:6379", 3)),
    ([waiting(hits=None)], [socket()], ("127.0.0.1:6379", 1)),
    ([waiting()], [socket(kind="http")], None),
    ([waiting()], [socket(kind=None)], None),
    ([waiting()], [socket(rport=6380)], None),
    ([waiting(None)], [LISTENING, socket()], None),
    ([waiting("127.0.0.1")], [socket(rport=None, kind=None), socket()], None),
    ([waiting(tid=12)], [socket()], None),
    ([], [socket()], None),
    ([waiting()], [], None),
])
def test_where_a_back_off_hides_the_read_system_calls_show_it(
    states: list[Row], sockets: list[Row], expected: tuple[str, int] | None
) -> None:
    found = loops(stack_frames=stacks(WAIT, WAIT, FORWARD), thread_states=states, sockets=sockets)
    assert [(row["peer"], row["reads"]) for row in found] == ([] if expected is None else [expected])
    for row in found:
        assert (row["seen_in"], row["ancestor"], row["chain"]) == ("system calls", "retry", "retry <- serve <- main")


@pytest.mark.parametrize(("verdict", "key", "expected"), [
    ("ghost", KEY, True), ("soft", KEY, True), ("ok", KEY, True), ("unknown", KEY, True), ("absent", KEY, False), ("ghost", OTHER, False),
])
def test_a_thread_that_loops_on_its_own_copy_is_known_by_the_key_it_holds(verdict: str, key: str, expected: bool) -> None:
    found = loops(
        stack_frames=stacks(WAIT, FORWARD, WAIT), cache_keys=[{"key": key, "verdict": verdict}, {"key": None, "verdict": "ghost"}],
        stack_locals=[local(0, KEY, "retry", stack=WAIT), local(2, KEY, "retry", stack=WAIT)],
    )
    assert [(row["seen_in"], row["reads"], row["ancestor"]) for row in found] == ([("held key", 0, "retry")] if expected else [])


@pytest.mark.parametrize("collected", [[], [asked("failed")], [asked(), asked("partial")]], ids=["never", "failed", "partly"])
def test_whether_it_loops_on_a_key_is_unknown_when_no_cache_could_be_asked(collected: list[Row]) -> None:
    held_all_along = [local(0, KEY, "retry", stack=WAIT), local(2, KEY, "retry", stack=WAIT)]
    (found,) = loops(stack_frames=stacks(WAIT, FORWARD, WAIT), stack_locals=held_all_along, collected=collected)
    assert (found["seen_in"], found["reads"], found["ancestor"]) == (None, 0, "retry")


@pytest.mark.parametrize(("first", "last"), [(KEY, OTHER), ("image:latest", "image:latest")], ids=["changes", "no digest"])
def test_what_is_no_held_digest_leaves_nothing_unknown(first: str, last: str) -> None:
    locals_ = [local(0, first, "retry", stack=WAIT), local(2, last, "retry", stack=WAIT)]
    assert loops(stack_frames=stacks(WAIT, FORWARD, WAIT), stack_locals=locals_, collected=[]) == []


def test_a_thread_that_left_the_frame_with_the_key_does_not_loop_on_it() -> None:
    found = loops(
        stack_frames=stacks(WAIT, "main > serve > get@queue.py", WAIT), cache_keys=[{"key": KEY, "verdict": "ghost"}],
        stack_locals=[local(0, KEY, "retry", stack=WAIT), local(2, KEY, "retry", stack=WAIT)],
    )
    assert found == []


def test_the_same_key_in_the_first_and_the_last_sample_is_held() -> None:
    (found,) = held([local(0, KEY), local(2, KEY)])
    assert (found["key"], found["func"], found["file"], found["line"], found["var"]) == (KEY, "encode", "app.py", 72, "key")
    assert (found["samples"], found["of"], found["held_s"], found["left_in"]) == (2, 2, 2.0, None)
    assert (found["digest"], found["cut"], found["in_client"], found["thread"]) == (True, False, False, "worker-0")
    assert (found["bundle"], found["capture"], found["pid"], found["tid"], found["source"]) == ("b", "1", 10, 11, "stacks/2.json#locals")


@pytest.mark.parametrize("locals_", [
    [local(0, KEY), local(2, OTHER)],
    [local(2, KEY)],
    [local(0, KEY)],
    [local(0, KEY), local(1, KEY, "forward", stack=FORWARD), local(2, OTHER)],
    [local(0, KEY), local(2, KEY, tid=12)],
], ids=["another key", "last only", "first only", "not in the last", "another thread"])
def test_a_key_that_changes_is_not_held(locals_: list[Row]) -> None:
    assert held(locals_) == []


@pytest.mark.parametrize(("between", "left_in"), [
    ([RECV, SEND], None),
    (["main > serve > retry > encode"], None),
    ([FORWARD, SEND], None),
    ([SEND, FORWARD, RECV, FORWARD], None),
    ([IDLE, SEND], 1),
    ([SEND, FORWARD, IDLE, FORWARD], 3),
    (["main > serve > wait@threading.py"], 1),
    (["main > serve > retry > encode > wait@threading.py"], None),
])
def test_a_frame_that_was_left_in_between_is_told(between: list[str], left_in: int | None) -> None:
    last = len(between) + 1
    (found,) = held([local(0, KEY), local(last, KEY)], SEND, *between, SEND)
    assert found["left_in"] == left_in


def test_a_key_seen_in_two_places_below_one_caller_is_held_by_that_caller() -> None:
    (found,) = held([local(0, KEY, "encode"), local(2, KEY, "forward", stack=FORWARD)], SEND, SEND, FORWARD)
    assert (found["key"], found["func"], found["left_in"]) == (KEY, "retry", None)


def test_a_torn_stack_in_between_does_not_mean_that_the_frame_was_left() -> None:
    frames = [*stacks(SEND), *stack("lookup > get@redis/client.py", 1, whole=False), *(row for row in stacks(SEND, SEND, SEND) if row["sample"] == 2)]
    (found,) = derived(cache_loops, stack_frames=frames, stack_locals=[local(0, KEY), local(2, KEY)])["held_keys"]
    assert (found["left_in"], found["held_s"]) == (None, 2.0)


def test_locals_of_a_torn_stack_are_not_believed() -> None:
    frames = [*stack(SEND, 0, whole=False), *(row for row in stacks(SEND, SEND, SEND) if row["sample"] != 0)]
    assert derived(cache_loops, stack_frames=frames, stack_locals=[local(0, KEY), local(2, KEY)])["held_keys"] == []


def test_the_outermost_frame_that_holds_a_key_is_named_and_the_client_below_it_noticed() -> None:
    rows = [local(sample, KEY, place) for sample in (0, 2) for place in ("get", "lookup", "retry")]
    (found,) = held(rows, SEND, SEND, RECV)
    assert (found["func"], found["file"], found["in_client"], found["left_in"]) == ("retry", "app.py", True, None)


@pytest.mark.parametrize("text", [
    "127.0.0.1:6379", "[::1]:6379", "::1:6379", "redis://cache:6379/0", "redis://:pw@cache:36379", "rediss://[fd00::1]:6380",
    "cache.prod.svc:36379", "localhost:36379", "cache:6379", "cache-0:26379/3",
    "two words: not a key", "plain", "", "x" * 600 + ":1",
])
def test_addresses_and_plain_texts_are_no_keys(text: str) -> None:
    assert held([local(0, text), local(2, text)]) == []


def test_the_printed_form_of_something_else_is_no_key() -> None:
    printed = "<Model(name='clip:v2')>"
    assert held([local(0, printed, is_text=False), local(2, printed, is_text=False)]) == []
    assert [row["key"] for row in held([local(0, KEY, is_text=None), local(2, KEY, is_text=None)])] == [KEY]


@pytest.mark.parametrize(("text", "digest"), [
    (KEY, True), ("img:9e107d9d-372b-b682-6bd8-1d3542a419d6", True), ("session:42", False), ("clip:image:42", False), ("emb:v2:63799", False), ("user@example", False), ("emb:9e107d9d372bb6", False),
])
def test_a_hash_or_uuid_in_a_key_is_told(text: str, digest: bool) -> None:
    assert [row["digest"] for row in held([local(0, text), local(2, text)])] == [digest]


def test_a_key_that_the_tool_cut_is_told() -> None:
    assert [row["cut"] for row in held([local(0, KEY, cut=True), local(2, KEY, cut=None)])] == [True]


def test_a_sample_that_read_locals_without_the_key_is_counted() -> None:
    (found,) = held([local(0, KEY), local(1, OTHER), local(2, KEY)], SEND, SEND, SEND)
    assert (found["key"], found["samples"], found["of"], found["left_in"]) == (KEY, 2, 3, None)


def test_without_times_it_is_not_known_how_long_a_key_was_held() -> None:
    assert [row["held_s"] for row in held([local(0, KEY, ts=None), local(2, KEY, ts=None)], ts=None)] == [None]


def test_threads_hold_keys_each_for_itself() -> None:
    frames = [*stacks(SEND, SEND), *stacks(SEND, SEND, tid=12)]
    rows = [local(0, KEY), local(1, KEY), local(0, OTHER, tid=12), local(1, OTHER, tid=12)]
    found = derived(cache_loops, stack_frames=frames, stack_locals=rows)["held_keys"]
    assert [(row["tid"], row["key"]) for row in found] == [(11, KEY), (12, OTHER)]


def test_a_key_is_found_in_its_frame_below_native_ones() -> None:
    def raised(rows: Sequence[Row], by: Sequence[int]) -> list[Row]:
        return [{**row, "depth": int(str(row["depth"])) + by[int(str(row["sample"]))]} for row in rows]

    native = [row for sample, text in ((0, "recv"), (1, "poll > read > recv")) for row in stack(text, sample, native=True, file="libc.so.6")]
    frames = [*raised(stacks(SEND, SEND), (1, 3)), *native]
    found = derived(cache_loops, stack_frames=frames, stack_locals=raised([local(0, KEY), local(1, KEY)], (1, 3)))["held_keys"]
    assert [(row["key"], row["func"], row["left_in"]) for row in found] == [(KEY, "encode", None)]


def test_a_dump_that_names_no_process_holds_keys_too() -> None:
    frames = stacks(SEND, SEND, pid=None)
    rows = [local(0, KEY, pid=None), local(1, KEY, pid=None)]
    found = derived(cache_loops, stack_frames=frames, stack_locals=rows)
    assert [(row["pid"], row["key"]) for row in found["held_keys"]] == [(None, KEY)]


def test_nothing_in_nothing_out() -> None:
    assert derived(cache_loops) == {"cache_loops": [], "held_keys": []}
    assert derived(cache_loops, thread_activity=[hot("spin")]) == {"cache_loops": [], "held_keys": []}
