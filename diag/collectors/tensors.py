"""Tensor dumps: what `llmdiag compare-dumps` found in a pair of them, and the figures of single dump files.

Sample of a comparison, from `llmdiag compare-dumps GOOD BAD -o comparison.json`::

    {"schema":"llmdiag.tensors/1","verdict":"differ","first_divergence":{"name":"layers.0.k_cache","block":0, ...}, ...}

No dump is taken from a live process. On Ascend: msprobe built with its ATB probe (--include-mod=atb_probe); write the dump
configuration and give it time to be read; send one request to wake the probe; switch dumping on; send the good, or the bad,
request; it is complete when atb_dump_data stops growing. Dump both on the same build with the same input.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from diag.bundle import Door
from diag.errors import Garbled, LlmdiagError
from diag.live import Collecting, Patient
from diag.model import MAX_BYTES, Artefact, Row
from diag.tables import Table
from diag.tensors.dump import Dump, ReadError, Tensor
from diag.tensors.files import format_of
from diag.tensors.measure import Figures, measure_one
from diag.tensors.opening import open_dump

NAME = "tensors"
FEEDS = ("tensors", "tensor_pairs")
NEEDS: tuple[str, ...] = ()
TABLES: tuple[Table, ...] = ()
BUDGET_S = 0.1
BUDGET_BYTES = 1
HINT = "llmdiag compare-dumps GOOD BAD -o comparison.json"
LIVE = False
MARK = b'"llmdiag.tensors/1"'
HEAD_BYTES = 4_096
FIGURES = ("min", "max", "mean", "std", "norm", "zeros", "nan", "inf")
COPIED = ("name", "rank", "step", "layer", "role", "block")
PAIR_COLUMNS = (
    *COPIED, "op", "direction", "ord", "cosine", "rel_l2", "max_abs", "max_rel", "mismatch_pct", "verdict", "doubt", "detail", "rows_differ", "rows_of",
    "first_row", "shift", "is_first", "follows", "control_rel_l2",
)  # fmt: skip


class Side(msgspec.Struct):
    """One side of a pair in the document."""

    dtype: str
    shape: list[int]
    physical: int | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    norm: float | None = None
    zeros: int | None = None
    nan: int | None = None
    inf: int | None = None


class Alias(msgspec.Struct):
    """Whose content it is."""

    dump: str
    name: str
    block: int | None = None
    request: str | None = None
    by: str | None = None


class Pair(msgspec.Struct):
    """One pair in the document."""

    name: str
    verdict: str
    good: Side
    bad: Side
    rank: int | None = None
    step: int | None = None
    layer: int | None = None
    block: int | None = None
    request: int | None = None
    role: str | None = None
    op: str | None = None
    direction: str | None = None
    ord: int | None = None
    cosine: float | None = None
    rel_l2: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    mismatch_pct: float | None = None
    doubt: str | None = None
    detail: str | None = None
    rows_differ: int | None = None
    rows_of: int | None = None
    first_row: int | None = None
    shift: int | None = None
    is_first: bool = False
    follows: bool = False
    control_rel_l2: float | None = None
    alias_of: Alias | None = None


class Who(msgspec.Struct):
    """A dump that took part."""

    name: str


class Document(msgspec.Struct):
    """What is read of `llmdiag.tensors/1`."""

    schema: str
    good: Who
    bad: Who
    pairs: list[Pair]


def collect(patient: Patient, door: Door) -> Collecting:
    """Nothing: a dump has to be switched on in the engine, and two of them compared."""
    for table in FEEDS:
        door.note(table, "skipped", f"no tensor dump is taken from a live process: dump a good and a bad run, then {HINT}")
    return
    yield


def recognise(name: str, head: bytes) -> bool:
    """The document of a comparison, or a tensor file (npy, npz, safetensors, torch, ATB bin)."""
    if head.lstrip()[:1] == b"{" and MARK in head[:HEAD_BYTES]:
        return True
    kind = format_of(Path(name), head[:HEAD_BYTES])
    return kind is not None and not name.endswith(".json")


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Comparisons and dump files -> rows. Raises Garbled."""
    for artefact in artefacts:
        with artefact.opener() as stream:
            head = stream.read(HEAD_BYTES)
            file = getattr(stream, "name", None)
        if MARK in head:
            yield from _comparison(artefact)
        else:
            with _as_file(artefact, file) as path:
                yield from _file(path, artefact)


def _comparison(artefact: Artefact) -> Iterator[Row]:
    try:
        document = msgspec.json.decode(artefact.bytes(), type=Document)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise Garbled(f"{artefact.path}: {error}", hint="give the whole file that llmdiag compare-dumps -o wrote") from error
    yield from pair_rows(document.pairs, document.good.name, document.bad.name, artefact.path)
    if not document.pairs:
        for table in FEEDS:
            yield "collected", {"table_name": table, "status": "failed", "reason": "the comparison holds no pair"}


def pair_rows(pairs: Iterable[Pair], good: str, bad: str, path: str) -> Iterator[Row]:
    """Three rows of each pair of a document `path`: itself and both of its sides. `good`, `bad`: names of the dumps."""
    for number, item in enumerate(pairs):
        source = f"{path}#pairs[{number}]"
        yield "tensor_pairs", {"source": source, "good_dump": good, "bad_dump": bad, **_pair(item)}
        for dump, side in ((good, item.good), (bad, item.bad)):
            yield "tensors", {"source": source, "dump": dump, "ord": item.ord, **_copied(item, COPIED), **_side(side)}


def _pair(item: Pair) -> Mapping[str, object]:
    alias = item.alias_of
    return {
        **_copied(item, PAIR_COLUMNS),
        "request": None if item.request is None else str(item.request),
        "good_physical": item.good.physical, "bad_physical": item.bad.physical, "dtype": item.bad.dtype, "shape": _shape(item.bad.shape),
        "bad_nan": _sum(item.bad.nan, item.bad.inf), "good_nan": _sum(item.good.nan, item.good.inf),
        "alias_dump": None if alias is None else alias.dump, "alias_name": None if alias is None else alias.name,
        "alias_block": None if alias is None else alias.block, "alias_request": None if alias is None else alias.request,
        "alias_by": None if alias is None else alias.by,
    }  # fmt: skip


def _side(item: Side) -> Mapping[str, object]:
    return {"dtype": item.dtype, "shape": _shape(item.shape), **_copied(item, FIGURES)}


def _copied(item: Any, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(item, name) for name in names}


def _sum(nan: int | None, inf: int | None) -> int | None:
    return None if nan is None or inf is None else nan + inf


def _shape(shape: Sequence[int]) -> str | None:
    return "x".join(map(str, shape)) or None


def _file(path: Path, artefact: Artefact) -> Iterator[Row]:
    """The figures of every tensor in one file. Raises Garbled."""
    try:
        dump = open_dump(path)
    except LlmdiagError as error:
        raise Garbled(f"{artefact.path}: {error.message}", hint=error.hint) from error
    for tensor in dump.tensors:
        try:
            figures = measure_one(tensor)[0] if tensor.offset >= 0 else None
        except ReadError as error:
            yield "collected", {"table_name": "tensors", "status": "partial", "reason": f"{artefact.path}: {tensor.name}: {error}"}
            continue
        yield "tensors", _tensor(tensor, figures, artefact, dump)
    for unread in dump.unread:
        yield "collected", {"table_name": "tensors", "status": "partial", "reason": f"{artefact.path}: {unread.reason}"}


def _tensor(tensor: Tensor, figures: Figures | None, artefact: Artefact, dump: Dump) -> Mapping[str, object]:
    told = _copied(figures, FIGURES) if figures is not None else {name: value for name, value in tensor.summary if name in FIGURES}
    return {
        "source": artefact.key(tensor.key or tensor.name), "dump": dump.name, "name": tensor.name, "rank": tensor.rank, "step": tensor.step,
        "layer": tensor.layer, "role": tensor.role, "dtype": tensor.dtype, "shape": _shape(tensor.shape), "ord": tensor.order, **told,
    }  # fmt: skip


@contextmanager
def _as_file(artefact: Artefact, file: object) -> Iterator[Path]:
    """The file itself where it is one; what comes out of a bundle is put into one for a while."""
    if isinstance(file, str) and Path(file).is_file():
        yield Path(file)
        return
    with tempfile.TemporaryDirectory() as folder, artefact.opener() as stream:
        path = Path(folder, artefact.name.replace("/", "_") or "dump")
        data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Garbled(f"{artefact.path} is larger than {MAX_BYTES >> 20} MiB", hint="give the dump file itself")
        path.write_bytes(data)
        yield path
