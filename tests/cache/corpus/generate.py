"""Fills an empty Redis with a realistic cache of LLM services, and writes down which keys are bad and which only look it.

python generate.py --redis redis://127.0.0.1:6379/0 --keys 100000 --seed 7 --truth truth.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ghosts
import lookalikes
import pairs
import redis
from dice import Dice
from families import Planted, Put, single_families

HARD = ("empty", "placeholder", "truncated", "corrupt", "checksum-mismatch", "nan-inf", "all-zero", "constant", "shape-mismatch", "dtype-mismatch",
        "missing-half", "error-cached", "foreign-object", "null-marker")
SOFT = ("norm-outlier", "length-outlier", "stale-version", "no-ttl", "null-marker")
BATCH_KEYS = 1000
MEMORY_CAP_BYTES = 12 << 30  # damaged bytes are read back, and may ask for any amount of memory


def planted(dice: Dice, each: int) -> list[Planted]:
    """Every reason each times, in turn over the families where it can happen, and every look-alike each times."""
    makers: dict[tuple[str, str], list[ghosts.Maker]] = {}
    sources = [ghosts.makers(family) for family in single_families()] + [family.makers for family in pairs.pair_families()]
    for source in sources:
        for case, make in source.items():
            makers.setdefault(case, []).append(make)
    found: list[Planted] = []
    for label, reason in [*(("ghost", reason) for reason in HARD), *(("soft", reason) for reason in SOFT)]:
        turn = makers[label, reason]
        start = dice.rnd.randrange(len(turn))
        found += [turn[(start + index) % len(turn)](dice) for index in range(each)]
    for name, make in lookalikes.LOOKALIKES.items():
        found += [make(dice) for _ in range(max(each, 30) if name == "old-version" else each)]  # an old version is a family, not a straggler
    return found + lookalikes.small_families(dice, families=-(-each // 5))


def ordinary(dice: Dice, count: int) -> Iterator[tuple[str, tuple[Put, ...]]]:
    """Endless ordinary entries by the families' weights: name of the family, its keys. At least ten of each come first."""
    sources: list[tuple[str, float, Any]] = [(family.name, family.weight, family.good) for family in [*single_families(), *pairs.pair_families()]]
    sources += [(make.__name__, weight, make) for weight, make in lookalikes.FILL]
    least = [source for source in sources for _ in range(10 if count > 2000 else 2)]
    names = dice.rnd.choices(sources, [source[1] for source in sources], k=count)
    for name, _, make in itertools.chain(least, names):
        made = make(dice)
        yield (made.family, made.puts) if isinstance(made, Planted) else (name, made)


def corpus(dice: Dice, keys: int, each: int, databases: range) -> tuple[list[tuple[int, Put]], list[dict[str, Any]]]:
    """All keys with their database, in random order, and the lines of the truth file."""
    writes: dict[str, tuple[int, Put]] = {}
    lines: list[dict[str, Any]] = []
    for case in planted(dice, each):
        database = _database(case.puts[0].key, databases)
        writes.update({put.key: (database, put) for put in case.puts})
        lines += _truth(case, database)
    if len(writes) * 2 > keys:
        raise SystemExit(f"--keys {keys} is too few for --each {each}: {len(writes)} keys are planted, and families need ordinary siblings; give at least {2 * len(writes)}")
    counts: Counter[str] = Counter()
    for name, puts in ordinary(dice, keys):
        if len(writes) >= keys:
            break
        if any(put.key in writes for put in puts) or len(writes) + len(puts) > keys:
            continue
        writes.update({put.key: (_database(put.key, databases), put) for put in puts})
        counts[name] += len(puts)
    lines.append({"label": "live", "reason": "ordinary", "count": sum(counts.values()), "families": dict(sorted(counts.items()))})
    order = list(writes.values())
    dice.rnd.shuffle(order)
    return order, lines


def _database(key: str, databases: range) -> int:
    # By how the key begins, so that a planted key lies among its siblings and both halves of an entry lie together.
    head = re.split("[:@/]", key)[0]
    head = "" if len(head) == 64 else "embeddings" if head == "values" else head[:6]
    return databases[sum(head.encode()) % len(databases)]


def _truth(case: Planted, database: int) -> list[dict[str, Any]]:
    hexes = [put.key.encode().hex() for put in case.puts]
    if case.target is None:
        return [{"db": database, "key_hex": key, "label": case.label, "reason": case.reason, "family": case.family} for key in hexes]
    line: dict[str, Any] = {"db": database, "key_hex": hexes[case.target], "label": case.label, "reason": case.reason, "family": case.family}
    partner = [key for index, key in enumerate(hexes) if index != case.target]
    return [line | ({"partner_key_hex": partner[0]} if partner else {})]


def write(url: str, order: list[tuple[int, Put]]) -> None:
    """Writes pipelined, one database after the other."""
    for database in sorted({database for database, _ in order}):
        mine = iter([put for there, put in order if there == database])
        with redis.Redis.from_url(urlsplit(url)._replace(path=f"/{database}").geturl()) as client:
            while batch := list(itertools.islice(mine, BATCH_KEYS)):
                pipe = client.pipeline(transaction=False)
                for put in batch:
                    _queue(pipe, put)
                pipe.execute()


def _queue(pipe: Any, put: Put) -> None:
    if put.kind == "string":
        pipe.set(put.key, put.value, ex=put.ttl_s)
        return
    if put.kind == "hash":
        pipe.hset(put.key, mapping=put.value)
    elif put.kind == "zset":
        pipe.zadd(put.key, put.value)
    else:
        raise ValueError(f"no way to write a {put.kind}")
    if put.ttl_s is not None:
        pipe.expire(put.key, put.ttl_s)


def main() -> int:
    """Exit 0 when the server holds the corpus, 2 when it was not empty or can not be reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redis", required=True, help="an EMPTY server, as redis://127.0.0.1:PORT/0")
    parser.add_argument("--keys", type=int, default=100_000, help="keys in all")
    parser.add_argument("--each", type=int, default=50, help="keys per reason and per look-alike")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--databases", type=int, default=1, help="spread the families over so many databases, from the URL's on")
    parser.add_argument("--canary", default="/tmp/llmdiag-corpus-canary", help="what the foreign objects would create if somebody loaded them")
    parser.add_argument("--truth", type=Path, required=True)
    args = parser.parse_args()
    client = redis.Redis.from_url(args.redis)
    try:
        held = client.info("keyspace")
    except redis.RedisError as error:
        print(f"generate: {args.redis}: {error}", file=sys.stderr)
        return 2
    if held:
        print(f"generate: {args.redis} is not empty ({', '.join(held)}): the corpus wants a server of its own", file=sys.stderr)
        return 2
    if Path(args.canary).exists():
        print(f"generate: {args.canary} exists already, so nobody could tell whether a scan ran a foreign object: remove it, or name another with --canary", file=sys.stderr)
        return 2
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_CAP_BYTES, resource.RLIM_INFINITY))
    begin_s = time.monotonic()
    first = int(urlsplit(args.redis).path.strip("/") or 0)
    order, lines = corpus(Dice(args.seed, time.time(), args.canary), args.keys, args.each, range(first, first + args.databases))
    made_s = time.monotonic() - begin_s
    write(args.redis, order)
    args.truth.write_text("".join(json.dumps(line) + "\n" for line in lines))
    held_keys = sum(base["keys"] for base in client.info("keyspace").values())
    labels = Counter(line["label"] for line in lines[:-1])
    print(f"{held_keys} keys ({labels['ghost']} ghosts, {labels['soft']} soft, {labels['live']} look-alikes, {lines[-1]['count']} ordinary); "
          f"made in {made_s:.1f} s, written in {time.monotonic() - begin_s - made_s:.1f} s")
    return 0 if held_keys == len(order) else 1


if __name__ == "__main__":
    sys.exit(main())
