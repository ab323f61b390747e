"""Are announced block hashes the hashes of their tokens? Checked with each algorithm that can be computed again.

A recording in which no hash fits any of them says nothing: the algorithm or the seed is another one. Only where some
fit is one that does not fit a finding.
"""

import json
import re
from collections.abc import Iterator, Sequence

from diag.lookups import vllm_hashes
from diag.lookups.events import Event
from diag.lookups.invariants import Violation

HEX = re.compile(r"[0-9a-f]{64}")
INT = re.compile(r"\d{1,20}")
MAX_BLOCKS = 200_000


def check(events: Sequence[Event]) -> Iterator[Violation]:
    """wrong-hash: stored blocks whose hash is not that of their parent, tokens and keys."""
    stored = [event for event in events if event.kind == "stored" and event.tokens and event.block_hash is not None][:MAX_BLOCKS]
    best: tuple[int, list[Violation]] = (0, [])
    for algorithm in vllm_hashes.ALGORITHMS:
        fits, found = _with(algorithm, stored)
        if fits > best[0]:
            best = (fits, found)
    yield from best[1]


def _with(algorithm: str, stored: Sequence[Event]) -> tuple[int, list[Violation]]:
    """How many hashes fit one algorithm, and those that should and do not."""
    root = vllm_hashes.none_hash(vllm_hashes.DEFAULT_SEED, algorithm)
    full: dict[str, bytes] = {}
    """Hash as announced -> digest: announced numbers are only its low 64 bits."""
    fits, seeded, wrong = 0, False, []
    for event in stored:
        text, tokens = event.block_hash or "", event.tokens or ()
        if event.block_size is not None and len(tokens) != event.block_size:
            continue
        parent = root if event.parent is None else _digest(event.parent, full)
        if parent is None:
            continue
        found = next((digest for digest in _candidates(event, parent, tokens, algorithm) if _same(digest, text)), None)
        if found is not None:
            full[text] = found
            fits += 1
            seeded = seeded or event.parent is None
        elif HEX.fullmatch(text) or INT.fullmatch(text):
            wrong.append(event)
    return fits, [_violation(event, algorithm, seeded) for event in wrong]


def _violation(event: Event, algorithm: str, seeded: bool) -> Violation:
    benign = None
    if event.parent is None and not seeded:
        benign = "the seed of first blocks is not known (random, or PYTHONHASHSEED)"
    elif event.extra is not None or event.lora is not None:
        benign = "events do not tell all that keys with adapters, images or salts are made of"
    return Violation("wrong-hash", f"{event.block_hash} is not the {algorithm} hash of its parent and tokens", event.source, benign, block_hash=event.block_hash)


def _digest(text: str, full: dict[str, bytes]) -> bytes | None:
    return full.get(text) or (bytes.fromhex(text) if HEX.fullmatch(text) else None)


def _same(digest: bytes, text: str) -> bool:
    return digest.hex() == text or (INT.fullmatch(text) is not None and vllm_hashes.low_64(digest) == int(text))


def _candidates(event: Event, parent: bytes, tokens: tuple[int, ...], algorithm: str) -> Iterator[bytes]:
    """Hashes with the keys as old versions hash them (as announced) and as new ones do (tagged with what they are)."""
    for extra in dict.fromkeys(_extras(event)):
        yield vllm_hashes.block_hash(parent, tokens, extra, algorithm)


def _extras(event: Event) -> Iterator[vllm_hashes.Extra]:
    keys = _keys(event.extra)
    if keys is None:
        yield None
        if event.lora is not None:
            yield (event.lora,)
            yield (("lora", event.lora),)
        return
    yield keys
    yield tuple(_tagged(key, event.lora) for key in keys)


def _tagged(key: object, lora: str | None) -> object:
    if isinstance(key, tuple):
        return ("mm", *key)
    return ("lora", key) if key == lora else ("cache_salt", key)


def _keys(extra: str | None) -> tuple[object, ...] | None:
    if extra is None:
        return None
    try:
        told = json.loads(extra)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, list):
        return None
    return tuple(tuple(key) if isinstance(key, list) and all(isinstance(part, str | int) for part in key) else str(key) for key in told)
