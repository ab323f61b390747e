"""Threads that read a cache server again and again below a caller they never leave, and the key they hold.

Recognised by shape, not by names: frames of a Redis client below a caller that is on the stack in every sample; or,
where a back-off makes the read too rare to be sampled, system calls that wait on a connection to a cache server.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from diag.derive.stack_stability import Frame, common_callers
from diag.parsers.key_texts import is_address, looks_like_key
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("thread_activity", "stack_frames", "stack_locals")
WANTS = ("thread_states", "sockets", "cache_keys", "collected")

# /opt/venv/lib/python3.11/site-packages/redis/connection.py, redis/client.py, valkey/connection.py
CACHE_CLIENT = re.compile(r"(^|/)(redis|valkey|aioredis|coredis|rediscluster|django_redis|aiocache|pymemcache|glide)/")
# clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6, or a UUID
DIGEST = re.compile(r"[0-9a-fA-F]{16,}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-")
# queue.py:171 get, threading.py:327 wait, selectors.py:468 select
WAITS_FOR_WORK = re.compile(r"(^|/)(queue|threading|selectors|concurrent/futures/\w+)\.py$")
# What a client does that fetches no cached value: counting, queueing, writing, waiting for messages
NO_READS = frozenset({
    "incr", "incrby", "incrbyfloat", "decr", "decrby", "hincrby", "set", "setex", "setnx", "psetex", "mset", "hset", "hmset", "expire",
    "pexpire", "persist", "touch", "delete", "unlink", "lpush", "rpush", "lpop", "rpop", "blpop", "brpop", "blmove", "lmove", "llen",
    "lrange", "zadd", "zpopmin", "bzpopmin", "zrange", "zcard", "sadd", "scard", "smembers", "xadd", "xread", "xreadgroup", "xack", "xlen",
    "publish", "subscribe", "get_message", "listen", "ping", "exists", "ttl", "pttl", "type", "scan", "scan_iter", "keys", "dbsize", "info",
    "time", "config_get", "lock", "acquire", "extend", "release",
})  # fmt: skip
ENTRY_FRAMES = frozenset({"_bootstrap", "_bootstrap_inner", "run", "<module>", "_worker", "_main", "spawn_main"})
CHAIN_FRAMES = 4
THREAD = ["bundle", "host", "capture", "pid", "tid"]

GIVES: tuple[Table, ...] = (
    table(
        "cache_loops",
        "Hot threads that read a cache below a caller they never leave, or may do so: what they hold could not be looked up",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: thread",
        "thread VARCHAR: Python name of the thread",
        "class VARCHAR: spin | poll", "runnable_pct DOUBLE: share of the window it was runnable", "vol_per_s DOUBLE: voluntary switches",
        "samples BIGINT: whole stacks of this thread", "of BIGINT: samples taken of its process",
        "ancestor VARCHAR: deepest function common to all samples", "ancestor_file VARCHAR: its file",
        "chain VARCHAR: cache read <- caller <- … <- the common caller",
        "reads BIGINT: samples (or system calls) in which it was seen reading the cache; 0 = only what it holds tells",
        "seen_in VARCHAR: stacks | system calls | held key (it loops on a copy in its own memory); NULL = not known, what it holds could not be looked up",
        "peer VARCHAR: cache server it waits on; NULL = seen in stacks only",
    ),
    table(
        "held_keys",
        "Key-like texts that one frame of a thread holds in the first and in the last sample",
        "pid BIGINT: process", "started_at TIMESTAMP: start of the process", "tid BIGINT: thread",
        "thread VARCHAR: Python name of the thread",
        "func VARCHAR: function whose frame holds it (outermost)", "file VARCHAR: its file", "line BIGINT: line in the last sample",
        "var VARCHAR: variable", "key VARCHAR: the text", "cut BOOLEAN: only its beginning is known",
        "in_client BOOLEAN: it is also an argument of a cache client's frame",
        "digest BOOLEAN: it contains a hash or UUID",
        "samples BIGINT: samples that read locals and hold it", "of BIGINT: samples that read locals",
        "left_in BIGINT: a sample between them in which that frame is not on the stack; NULL = it never left",
        "held_s DOUBLE: time between first and last sample that hold it",
    ),
)


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """thread_activity + stacks + locals (+ system calls, sockets) -> cache_loops, held_keys."""
    import pandas as pd

    rows = _of_suspects(frames)
    stacks = _stacks(rows)
    held = _held(_above_native(frames["stack_locals"], rows), stacks)
    loops = _loops(frames, stacks, _holders(held, frames.get("cache_keys")), _suspects(held, frames))
    given = {}
    if loops:
        given["cache_loops"] = pd.DataFrame(loops)
    if held:
        given["held_keys"] = pd.DataFrame(held)
    return given


def _of_suspects(frames: "Mapping[str, pd.DataFrame]") -> "pd.DataFrame":
    """Frames of the threads that are hot, or whose variables were read: of hundreds of threads a few."""
    import pandas as pd

    suspects = pd.concat([_hot(frames["thread_activity"])[THREAD], frames["stack_locals"][THREAD]]).drop_duplicates()
    return frames["stack_frames"].merge(suspects, on=THREAD) if len(suspects) else pd.DataFrame()


def _hot(activity: "pd.DataFrame") -> "pd.DataFrame":
    return activity[activity["class"].isin(["spin", "poll"])]


Stacks = dict[tuple[object, ...], dict[int, list[Frame]]]


def _stacks(rows: "pd.DataFrame") -> Stacks:
    """thread -> sample -> frames, root first; torn stacks are left out."""
    found: Stacks = {}
    if rows.empty:
        return found
    python = rows[rows["native"].ne(True) | rows["native"].isna()]
    whole = python[python["whole"].ne(False) | python["whole"].isna()].sort_values([*THREAD, "sample", "depth"], ascending=[True] * 6 + [False])
    columns = [whole[name] for name in THREAD]
    for *identity, sample, func, file in zip(*columns, whole["sample"], whole["func"].fillna("?"), whole["file"].fillna("?"), strict=True):
        found.setdefault(tuple(identity), {}).setdefault(int(sample), []).append((str(func), str(file)))
    return {identity: _rooted(samples) for identity, samples in found.items()}


def _above_native(rows: "pd.DataFrame", frames: "pd.DataFrame") -> "pd.DataFrame":
    """Locals with depths that count Python frames only, as the stacks here do."""
    if rows.empty or frames.empty or not frames["native"].eq(True).any():
        return rows
    native: dict[tuple[object, ...], list[int]] = {}
    inner = frames[frames["native"].eq(True).fillna(False).astype(bool)]
    for *sample, depth in zip(*(inner[name] for name in (*THREAD, "sample", "depth")), strict=True):
        native.setdefault(tuple(sample), []).append(int(depth))
    places = zip(*(rows[name] for name in (*THREAD, "sample", "depth")), strict=True)
    return rows.assign(depth=[int(depth) - sum(below < depth for below in native.get(tuple(sample), ())) for *sample, depth in places])


def _rooted(samples: dict[int, list[Frame]]) -> dict[int, list[Frame]]:
    """Samples that begin at the thread's usual entry: a torn stack begins somewhere in the middle."""
    usual = Counter(stack[0] for stack in samples.values()).most_common(1)[0][0]
    return {number: stack for number, stack in samples.items() if stack[0] == usual}


def _holders(held: list[dict[str, object]], cache: "pd.DataFrame | None") -> set[tuple[object, ...]]:
    """Threads that never left a frame which holds the key of an entry that exists in the cache."""
    if cache is None or cache.empty:
        return set()
    known = set(cache.loc[cache["verdict"] != "absent", "key"].dropna())
    return {tuple(row[name] for name in THREAD) for row in held if row["key"] in known and row["left_in"] is None}


def _suspects(held: list[dict[str, object]], frames: "Mapping[str, pd.DataFrame]") -> set[tuple[object, ...]]:
    """Threads that never left a frame which holds what may be a cache key, when the cache could not be asked."""
    collected = frames.get("collected")
    if collected is None:
        return set()
    about = collected.loc[collected["table_name"] == "cache_keys", "status"]
    if not about.empty and about.eq("ok").all():
        return set()
    return {tuple(row[name] for name in THREAD) for row in held if row["digest"] and row["left_in"] is None}


def _loops(
    frames: "Mapping[str, pd.DataFrame]", stacks: Stacks, holders: set[tuple[object, ...]], suspects: set[tuple[object, ...]]
) -> list[dict[str, object]]:
    taken = frames["stack_frames"].groupby(["bundle", "capture", "pid"])["sample"].nunique().to_dict() if stacks else {}
    names = frames["stack_frames"].dropna(subset=["thread"]).drop_duplicates(THREAD).set_index(THREAD)["thread"].to_dict() if stacks else {}
    peers = _cache_waits(frames)
    out = []
    for row in _hot(frames["thread_activity"]).to_dict("records"):
        identity = tuple(row[name] for name in THREAD)
        mine = list(stacks.get(identity, {}).values())
        common = common_callers(mine)
        common = common[: next((n for n, (_, file) in enumerate(common) if CACHE_CLIENT.search(file)), len(common))]
        if len(mine) < 2 or not common or common[-1][0] in ENTRY_FRAMES:
            continue
        if _fetches_nothing(mine):
            continue
        reading = [found for found in (_read_chain(stack, len(common)) for stack in mine) if found]
        peer, hits = peers.get(identity, (None, 0))
        seen_in = "stacks" if reading else "system calls" if hits else "held key" if identity in holders else None
        if seen_in is None and identity not in suspects:
            continue
        out.append({
            **{name: row[name] for name in (*THREAD, "started_at", "class", "runnable_pct", "vol_per_s", "source")},
            "thread": names.get(identity), "samples": len(mine), "of": taken.get((identity[0], identity[2], identity[3])),
            "ancestor": common[-1][0], "ancestor_file": common[-1][1],
            "chain": reading[0] if reading else _common_chain(common),
            "reads": len(reading) or hits, "seen_in": seen_in, "peer": peer,
        })
    return out


def _fetches_nothing(stacks: list[list[Frame]]) -> bool:
    """Does it use the cache client, whenever it is seen in it, for something else than reading values?"""
    calls = {next((func for func, file in stack if CACHE_CLIENT.search(file)), None) for stack in stacks} - {None}
    return bool(calls) and calls <= NO_READS


def _read_chain(stack: list[Frame], common: int) -> str | None:
    """`get <- lookup <- encode <- retry` when a cache client's frame lies below the common callers (root first)."""
    first = next((n for n, (_, file) in enumerate(stack) if CACHE_CLIENT.search(file)), None)
    if first is None or first < common:
        return None
    callers = [func for func, _ in stack[max(0, common - 1) : first + 1]]
    return " <- ".join(reversed(callers[-CHAIN_FRAMES:] if len(callers) > CHAIN_FRAMES else callers))


def _common_chain(common: list[Frame]) -> str:
    return " <- ".join(func for func, _ in reversed(common[-CHAIN_FRAMES:]))


def _cache_waits(frames: "Mapping[str, pd.DataFrame]") -> dict[tuple[object, ...], tuple[str, int]]:
    """thread -> (cache server, how many quick reads found it waiting on a connection to that server)."""
    states, sockets = frames.get("thread_states"), frames.get("sockets")
    if states is None or sockets is None or states.empty or sockets.empty:
        return {}
    known = sockets[sockets["peer_kind"] == "redis"]
    servers = {_peer(raddr, rport) for raddr, rport in zip(known["raddr"], known["rport"], strict=True)}
    waits = states[states["peer"].isin(servers)]
    found: dict[tuple[object, ...], tuple[str, int]] = {}
    for row in waits.to_dict("records"):
        identity = tuple(row[name] for name in THREAD)
        hits = row.get("hits")
        found[identity] = (str(row["peer"]), found.get(identity, ("", 0))[1] + (1 if hits is None or hits != hits else int(hits)))
    return found


def _peer(raddr: object, rport: object) -> str:
    """`127.0.0.1:6379`, or the path of a unix socket (which has no port)."""
    port = str(rport).removesuffix(".0")
    return f"{raddr}:{port}" if port.isdigit() else str(raddr)


def _threads(rows: "pd.DataFrame") -> "Iterator[tuple[object, ...]]":
    """(identity of the thread…, sample) per row."""
    return zip(*(rows[name] for name in THREAD), rows["sample"], strict=True)


def _held(rows: "pd.DataFrame", stacks: Stacks) -> list[dict[str, object]]:
    if rows.empty:
        return []
    rows = rows[rows["is_text"].ne(False) | rows["is_text"].isna()]
    rows = rows[[looks_like_key(str(text)) and not is_address(str(text)) for text in rows["repr"]]]
    if rows.empty:
        return []
    rows = rows[[int(str(sample)) in stacks.get(tuple(thread), {}) for *thread, sample in _threads(rows)]]
    if rows.empty:
        return []
    read_in = rows.groupby(THREAD, dropna=False)["sample"].unique().to_dict()
    in_client = {
        (*[row[name] for name in THREAD], row["repr"])
        for row in rows.to_dict("records")
        if isinstance(row["file"], str) and CACHE_CLIENT.search(row["file"])
    }
    out = []
    for identity, group in rows.groupby([*THREAD, "repr"], dropna=False, sort=False):
        samples = sorted(int(sample) for sample in group["sample"].unique())
        taken = sorted(int(sample) for sample in read_in[tuple(identity[:5])])
        if len(taken) < 2 or samples[0] != taken[0] or samples[-1] != taken[-1]:
            continue
        thread = stacks.get(tuple(identity[:5]), {})
        place = _outermost(group, thread)
        if place is not None:
            out.append(_held_row(identity, group, place, samples, taken, thread, identity in in_client))
    return out


def _outermost(group: "pd.DataFrame", thread: dict[int, list[Frame]]) -> tuple[int, Frame] | None:
    """The outermost frame (level from the root, frame) that holds the text in the first and the last sample."""
    levels: dict[int, dict[tuple[int, Frame], bool]] = {}
    for sample, depth, func, file in zip(group["sample"], group["depth"], group["func"], group["file"], strict=True):
        stack = thread.get(int(sample))
        if stack is not None:
            levels.setdefault(int(sample), {})[(len(stack) - 1 - int(depth), (str(func), str(file)))] = True
    if len(levels) < 2:
        return None
    both = set(levels[min(levels)]) & set(levels[max(levels)])
    if both:
        return min(both)
    # The thread moved on within the same turn, or a stack was read while it moved: the caller it never left holds on to the key.
    shared = common_callers([thread[min(levels)], thread[max(levels)]])
    return (len(shared) - 1, shared[-1]) if shared and shared[-1][0] not in ENTRY_FRAMES else None


def _held_row(
    identity: tuple[object, ...], group: "pd.DataFrame", place: tuple[int, Frame], samples: list[int], taken: list[int],
    thread: dict[int, list[Frame]], in_client: bool,
) -> dict[str, object]:
    level, frame = place
    here = group[(group["func"] == frame[0]) & (group["file"] == frame[1])]
    here = here if not here.empty else group
    last = here[here["sample"] == samples[-1]].iloc[-1] if not here[here["sample"] == samples[-1]].empty else here.iloc[-1]
    gone = {n: stack for n, stack in thread.items() if samples[0] < n < samples[-1] and (len(stack) <= level or stack[level] != frame)}
    # Off that frame it may be in another turn of the same loop (the forward pass); only waiting for work is leaving.
    left = [n for n, stack in sorted(gone.items()) if WAITS_FOR_WORK.search(stack[-1][1])]
    seconds = (group["ts"].max() - group["ts"].min()).total_seconds() if group["ts"].notna().any() else None
    return {
        **dict(zip(THREAD, identity[:5], strict=True)), "started_at": last["started_at"], "source": last["source"],
        "thread": last["thread"], "func": frame[0], "file": frame[1], "line": last["line"], "var": last["var"],
        "key": identity[5], "cut": bool(group["cut"].fillna(False).any()), "in_client": in_client,
        "digest": bool(DIGEST.search(str(identity[5]))), "samples": len(samples), "of": len(taken),
        "left_in": left[0] if left else None, "held_s": seconds,
    }
