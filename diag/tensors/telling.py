"""A result with the owner of its block: verdict, alias and words."""

from collections.abc import Sequence
from dataclasses import replace

from diag.tensors.judging import Wrong
from diag.tensors.matching import READ, Match, Origin
from diag.tensors.result import Alias, Other, Result

NAMED = 2
SHOWN_READERS = 3


def with_owner(item: Result, match: Match, by: str, tensor: Wrong, good: str) -> Result:
    """The result as the block of that owner. `by`: how it was recognised (see Alias); `good`: name of the good dump."""
    origin = match.origin
    own = origin.dump == good and origin.physical is None
    request = None if origin.physical is not None else _request(origin)
    block = None if origin.physical is not None else match.block
    alias = Alias(origin.dump, item.name, block, request, by, match.rows, origin.physical, origin.step)
    whole_blocks = match.shift % tensor.bad.block_tokens == 0
    moved = None if origin.physical is not None or not own or whole_blocks else match.shift
    return replace(item, verdict="permuted" if own else "aliased", alias=alias, shift=moved, detail=_words(item, match, alias, moved, by, own=own))


def _words(item: Result, match: Match, alias: Alias, moved: int | None, by: str, *, own: bool) -> str:
    how = {"noise": ", but for rounding", "fingerprint": ": the same tokens, by V of layer 0"}.get(by, "")
    if moved is not None:
        return f"the good run's rows shifted by {moved:+d} tokens{how}"
    part = "" if by == "noise" or match.rows >= (item.rows_of or 1) else f"{match.rows} of {item.rows_of} rows are of "
    if alias.physical is not None:
        return f"{part}pool block {alias.physical} of {alias.dump}, which belongs to no request there{how}"
    return f"{part}block {alias.block} of {'the good run' if own else alias.request}{how}"


def with_others(item: Result, dump: str, others: Sequence[Match], own: tuple[str, str]) -> Result:
    """Which donors might be named as well as `dump`; `own`: the good and the bad dump."""
    alias = item.alias
    if alias is None or not others or alias.physical is not None or alias.dump in own or alias.dump != dump:
        return item
    known = tuple(Other(match.origin.dump, _request(match.origin), match.block) for match in others)
    return replace(item, alias=replace(alias, others=known), detail=f"{item.detail}, or {either(known)}")


def with_readers(item: Result, owner: Match, readers: Sequence[Match]) -> Result:
    """Who else read that block at the same place and did not write it, and whether the one that is named only read it as well."""
    alias = item.alias
    if alias is None or alias.dump != owner.origin.dump:
        return item
    also = tuple(_request(match.origin) for match in readers if match.origin.dump not in {other.dump for other in alias.others})
    known = replace(alias, readers=also, only_read=owner.hand == READ)
    return replace(item, alias=known, detail=f"{item.detail}{read_by(known)}")


def read_by(alias: Alias) -> str:
    """`, also read by cmpl-75 and cmpl-77`, or that nobody is known who wrote it."""
    if alias.only_read:
        return ", whose dumped step only read it there, too: who wrote it is not among the donors"
    if not alias.readers:
        return ""
    named = ", ".join(alias.readers[:SHOWN_READERS])
    return f", also read by {named}" + (f" and {len(alias.readers) - SHOWN_READERS} more" if len(alias.readers) > SHOWN_READERS else "")


def either(others: Sequence[Other]) -> str:
    """`of block 3 of request-8, or of block 3 of request-9`: the further owners that fit as well."""
    named = ", or ".join(f"of block {item.block} of {item.request}" for item in others[:NAMED])
    return named + (f", or of {len(others) - NAMED} more" if len(others) > NAMED else "")


def _request(origin: Origin) -> str:
    return origin.dump if origin.request is None else f"{origin.dump}[{origin.request}]"


def with_rest(item: Result, rest: Match, good: str) -> Result:
    """Its words with the second owner."""
    origin = rest.origin
    whose = f"pool block {origin.physical}" if origin.physical is not None else f"block {rest.block}"
    dump = "the good run" if origin.dump == good else origin.dump if origin.request is None else f"{origin.dump}[{origin.request}]"
    return replace(item, detail=f"{item.detail}, {rest.rows} of {whose} of {dump}")
