"""What a family file states of its values, compared with one value: a broken statement is a hard reason."""

from collections.abc import Iterator

from diag.cache.values.facts import Facts
from diag.cache.values.families import older
from diag.cache.values.family_files import Known
from diag.cache.values.reasons import Reason


def broken(facts: Facts, known: Known, *, ttl_s: float | None, version: str | None) -> Iterator[Reason]:
    """`version`: of the key, else of the wrapper."""
    expect = known.file.expect
    if facts.kind in ("array", "raw", "text", "json", "object"):
        yield from _form(facts, known)
    norm = None if facts.stats is None else facts.stats.norm
    if expect.norm is not None and norm is not None and not expect.norm[0] <= norm <= expect.norm[1]:
        yield Reason("norm-outlier")
    if expect.bytes is not None and not expect.bytes[0] <= facts.bytes <= expect.bytes[1]:
        yield Reason("length-outlier")
    if expect.version is not None and version is not None and _other(version, expect.version):
        yield Reason("stale-version")
    if (expect.ttl == "required" and ttl_s is None) or (expect.ttl_max_s is not None and (ttl_s is None or ttl_s > expect.ttl_max_s)):
        yield Reason("no-ttl")


def _form(facts: Facts, known: Known) -> Iterator[Reason]:
    expect = known.file.expect
    if expect.codec and not {facts.codec, facts.codec.rpartition("+")[2]} & set(expect.codec):
        yield Reason("corrupt" if facts.kind == "raw" else "dtype-mismatch")
    elif (expect.dtype or expect.shape is not None) and facts.dtype is None and facts.kind != "raw":
        yield Reason("dtype-mismatch")  # where an array must be there is none
    elif expect.dtype and facts.dtype is not None and facts.dtype not in expect.dtype:
        yield Reason("dtype-mismatch")
    if expect.shape is not None and facts.shape is not None and not _fits(facts.shape, expect.shape):
        yield Reason("shape-mismatch")


def _fits(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> bool:
    return len(shape) == len(wanted) and all(axis in ("*", size) for axis, size in zip(wanted, shape, strict=True))


def _other(version: str, wanted: str) -> bool:
    """Older, or not to be compared; a newer one is the service's next version, not a ghost."""
    bare = version.lstrip("vV") != wanted.lstrip("vV")
    return bare and older(version, wanted) is not False
