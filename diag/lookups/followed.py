"""Which of two answers did the engine use? A log that prints both does not say; evidence does. Pure.

The surest comes first: the engine's own count of hits, or the cached tokens that its answer to this very request told;
then what its other lookups show, as one build searches in one way; then what is known of its version.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Answers:
    """What two searches answer to one lookup, in blocks."""

    who: str
    binary: int
    linear: int
    disagrees: bool
    engine: int | None = None
    """What the engine logged that it reused."""
    cached_tokens: int | None = None
    """What its answer to this request told; None: it is not among the questions of an experiment."""
    is_logged: bool = True
    """The binary answer is the engine's line, not one of ours."""


@dataclass(frozen=True)
class Used:
    """What is known of the answer that was used."""

    engine: int | None = None
    by: Literal["logged", "cached_tokens"] | None = None
    reused: bool | None = None
    """A block that is not there was reused; None: nothing says which answer was used."""
    says: str | None = None


def used(lookups: Sequence[Answers], versions: Mapping[str, str]) -> list[Used]:
    """Lookups of one engine, and what its versions are known to do (words -> affected | possible | fixed) -> one for each lookup."""
    size = _block_size(lookups)
    direct = [_direct(item, size) for item in (lookups if _is_trusted(lookups, size) else [replace(item, cached_tokens=None) for item in lookups])]
    other = _of_others(lookups, direct) if any(found.reused is not None for found in direct) else _of_version(versions)
    return [_settled(item, found, other) for item, found in zip(lookups, direct, strict=True)]


def _settled(item: Answers, found: Used, other: tuple[bool, str] | None) -> Used:
    if not item.disagrees:
        return Used(found.engine, found.by, reused=False)
    if found.reused is not None or other is None or not item.is_logged:
        return found
    return Used(found.engine, found.by, *other)


def _direct(item: Answers, size: int | None) -> Used:
    if item.engine is not None:
        return _judged(item, item.engine, "logged", "the engine logged that it reused {}")
    blocks = _blocks(item, size)
    if blocks is None:
        return Used()
    return _judged(item, blocks, "cached_tokens", f"its answer came with {item.cached_tokens} cached tokens, which are {{}}")


def _judged(item: Answers, engine: int, by: Literal["logged", "cached_tokens"], words: str) -> Used:
    if item.binary == item.linear and engine == item.linear:  # two lists of the same length: the count does not tell them apart
        return Used(engine, by)
    whose = ", as the binary search says" if engine == item.binary else ", as the walk says" if engine == item.linear else ""
    return Used(engine, by, engine > item.linear, words.format("1 block" if engine == 1 else f"{engine} blocks") + whose)


def _blocks(item: Answers, size: int | None) -> int | None:
    """Cached tokens as blocks, where they can be of one of the two answers only; None: they are of neither, or could be of both."""
    if not item.disagrees or item.cached_tokens is None or item.binary <= item.linear:
        return None
    # engines that must compute something give the last block of a whole hit back
    possible = {blocks for blocks in (item.linear, item.binary, item.binary - 1) if _fits(item.cached_tokens, blocks, size)}
    return None if item.linear in possible and len(possible) > 1 else max(possible, default=None)


def _fits(tokens: int, blocks: int, size: int | None) -> bool:
    if size is not None:
        return tokens == blocks * size
    return tokens == 0 if blocks == 0 else tokens > 0 and tokens % blocks == 0


def _block_size(lookups: Sequence[Answers]) -> int | None:
    """Tokens of a block: what most lookups without a dispute agree on."""
    told = _undisputed(lookups)
    sizes = Counter(tokens // blocks for tokens, blocks in told if tokens and tokens % blocks == 0)
    best = sizes.most_common(1)
    return best[0][0] if best and 2 * best[0][1] > len(told) else None


def _is_trusted(lookups: Sequence[Answers], size: int | None) -> bool:
    """Do cached tokens speak of these lookups? Those of another run, or of an endpoint that always tells 0, do not go with undisputed ones."""
    return size is not None if _undisputed(lookups) else any(item.cached_tokens for item in lookups)


def _undisputed(lookups: Sequence[Answers]) -> list[tuple[int, int]]:
    return [(item.cached_tokens, item.linear) for item in lookups if not item.disagrees and item.cached_tokens is not None and item.linear]


def _of_others(lookups: Sequence[Answers], direct: Sequence[Used]) -> tuple[bool, str] | None:
    """What the settled disputes of the same log show, if they all show the same."""
    shown: dict[bool, str] = {}
    for item, found in _disputes(lookups, direct):
        if found.reused is not None:
            shown.setdefault(found.reused, f"{item.who} shows which search this engine follows: {found.says}")
    return next(iter(shown.items())) if len(shown) == 1 else None


def _disputes(lookups: Sequence[Answers], direct: Sequence[Used]) -> Iterator[tuple[Answers, Used]]:
    return ((item, found) for item, found in zip(lookups, direct, strict=True) if item.disagrees)


def _of_version(versions: Mapping[str, str]) -> tuple[bool, str] | None:
    """What the version does, if all that are known do the same."""
    kinds = set(versions.values())
    if kinds not in ({"affected"}, {"fixed"}):
        return None
    return kinds == {"affected"}, next(iter(versions))
