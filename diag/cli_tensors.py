"""`llmdiag compare-dumps`: parse, wire, print, exit codes."""

import contextlib
import errno
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import cli_diagnosis, terminal
from diag.errors import BadInput, LlmdiagError

if TYPE_CHECKING:
    from diag.evidence import Evidence
    from diag.model import Action, Diagnosis, Row, RuleResult
    from diag.spool import Spooled
    from diag.tensors.dump import Dump
    from diag.tensors.result import Comparison

WIDE = 0.3
"""Relative L2 that no rounding explains."""
MAX_LOOKUPS = 20_000
SUFFIXES = (".json", ".parquet")
BESIDE = frozenset({"block_lookups", "prefix_trials"})
"""Evidence that goes with a comparison of dumps."""
UNNAMED = "(this comparison)"
"""What rows are cited by where no file was asked for."""
LATER = "comparison.json"
"""The file that a printed command writes first, where none was asked for."""
PLACE = click.Path(path_type=Path, exists=True)


@click.command("compare-dumps")
@click.argument("good", type=PLACE)
@click.argument("bad", type=PLACE)
@click.option("--control", type=PLACE, metavar="DIR", help="The good request once more: how noisy this engine is.")
@click.option("--donors", multiple=True, type=PLACE, metavar="DIR", help="Dump of another request, or a folder of them: whose block it may be.")
@click.option("--map", "map_file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE", help='Renamed tensors: TOML lines "old.*" = "new.*", one * on each side or none. An exact name wins, then the first line that fits.')
@click.option("--block-size", type=click.IntRange(1), metavar="N", help="Tokens in a block of the KV cache (found by itself for pools).")
@click.option("--layout", type=click.Choice(["auto", "nhd", "hnd"]), default="auto", show_default=True, help="Order of tokens (N) and heads (H) in the cache.")
@click.option("--lookups", multiple=True, type=PLACE, metavar="FILE", help="Log with the lookups of the prefix cache, judged together with the dumps.")
@click.option("--dtype", "dtypes", multiple=True, metavar="[NAME=]TYPE", help="Element type of tensors whose file lost it or holds its bits as integers, e.g. bfloat16.")
@click.option("--tolerance", "tolerances", multiple=True, metavar="[TYPE=]X", help="Relative L2 (norm of the difference as a share of the good norm, 0 to 1) that is still close, e.g. bfloat16=0.05.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write FILE.json for `llmdiag analyze`, or FILE.parquet.")
@cli_diagnosis.DATE
@cli_diagnosis.ZONE
@terminal.format_option("text", "json")
def compare_dumps(
    good: Path, bad: Path, control: Path | None, donors: tuple[Path, ...], lookups: tuple[Path, ...], output: Path | None, form: str, **asked: Any
) -> None:
    """Compare the tensor dumps of a good and a bad run: the first divergence, and whose block it is.

    Reads .npy, .npz, .safetensors, .pt, ATB .bin and the folders of msprobe, SGLang and others; runs nothing that is in them.
    Exit: 0 same or close, 1 differ, 2 error.
    """
    from diag.tensors.compare import compare
    from diag.tensors.pairing import unused_types, with_types

    if output is not None and output.suffix not in SUFFIXES:
        raise BadInput(f"-o {output}: what kind of file?", hint="name it .json (for llmdiag analyze) or .parquet (the pairs as a table)")
    types = _types(asked["dtypes"])
    options = replace(_options(asked), types=types)
    _check_lookups(lookups)
    with terminal.progress("compare-dumps") as progress:
        plain = _opened([good, bad] if control is None else [good, bad, control], progress)
        strangers = [dump for path in donors for dump in _donors(path, progress)]
        dumps, others = [with_types(dump, types) for dump in plain], [with_types(dump, types) for dump in strangers]
        found = compare(dumps[0], dumps[1], control=None if control is None else dumps[2], others=others, options=options, progress=progress)
        found = replace(found, notes=(*unused_types([*plain, *strangers], types), *found.notes))
        progress("diagnosing", 1.0)
        with tempfile.TemporaryDirectory() as folder:
            rows = _spooled(found, Path(folder, "comparison.duckdb"), UNNAMED if output is None else output.name)
            if output is not None and output.suffix == ".parquet":
                _write(output, lambda partial: _write_pairs(partial, rows))
            loaded, diagnosis = _diagnosed(found, rows, lookups, output or bad, asked)
            again = _command(good, bad, donors, lookups, asked)
            diagnosis = runnable(diagnosis, again, bad, lookups, None if output is None or output.suffix != ".json" else output)
    if output is not None and output.suffix == ".json":
        _write(output, lambda partial: _write_document(partial, _document(found, loaded, diagnosis)))
    try:
        if form == "json":
            for piece in _document(found, loaded, diagnosis):
                terminal.out(piece.decode())
        else:
            _show(found, diagnosis, more=output is not None and output.suffix == ".json", has_lookups=bool(lookups))
    except terminal.OutputLost as lost:
        if lost.args[0] != errno.EPIPE:
            raise
        terminal.silence(sys.stdout)  # `| head` has seen enough: the verdict stands
    sys.exit(_code(found))


def _code(found: "Comparison") -> int:
    """What was not read may differ: equal as far as was looked is no proof for a script that sees only this."""
    if found.verdict == "differ":
        return 1
    if not found.unread:
        return 0
    side, first = found.unread[0]
    count = "1 file" if len(found.unread) == 1 else f"{len(found.unread)} files"
    terminal.note(terminal.printable(f"error: {count} could not be read, first {first.source} ({side}): {first.reason}\n  dump or copy again, or leave {'it' if len(found.unread) == 1 else 'them'} out, then compare again"))
    return 2


def _check_lookups(paths: Sequence[Path]) -> None:
    """Before the dumps are compared. Raises BadInput that names the first path without any lookups."""
    from diag import evidence
    from diag.collectors import lookups
    from diag.sources import sources_of

    collectors = evidence.collectors_of(evidence.Extras())
    for path in paths:
        found = [artefact for source in sources_of([path], collectors) for name in (lookups.NAME, *lookups.BESIDE) for artefact in source.artefacts.get(name, ())]
        if not any(table != "collected" for table, _ in lookups.parse(found)):
            raise BadInput(
                f"--lookups {terminal.printable(str(path))}: no lookup of a prefix cache is recognised in it",
                hint="give the log lines of the block manager, recorded KV events, or one JSON object a lookup; other logs go to llmdiag analyze",
            )


def _options(asked: dict[str, Any]) -> Any:
    from diag.tensors.compare import Options
    from diag.tensors.cutting import How
    from diag.tensors.renaming import SAME_NAMES, read_map
    from diag.tensors.verdicts import Limits

    names = SAME_NAMES if asked["map_file"] is None else read_map(asked["map_file"])
    return Options(How(asked["block_size"], asked["layout"]), names, Limits(_tolerances(asked["tolerances"])))


def _tolerances(texts: Sequence[str]) -> dict[str, float]:
    from diag.tensors.elements import NAMES, named

    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        kind = "*" if not name else named(name)
        if kind != "*" and kind not in NAMES:
            raise BadInput(f"--tolerance {text}: no such element type: {name}", hint="for example --tolerance bfloat16=0.05, or --tolerance 0.01 for all types")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if value > 1:
            raise BadInput(
                f"--tolerance {text}: above 1 everything is close; it is relative L2, the difference's norm as a share of the good tensor's",
                hint="for example --tolerance bfloat16=0.05: up to 5 percent of the norm is rounding",
            )
        if not value >= 0:
            raise BadInput(f"--tolerance {text}: no relative L2", hint="for example --tolerance bfloat16=0.05, or --tolerance 0.01 for all types")
        if value >= WIDE:
            terminal.note(f"--tolerance {text} (a share of the good tensor's norm): so wide that a wrong block may count as close; rounding explains no more than a few percent")
        found[kind] = value
    return found


def _types(texts: Sequence[str]) -> dict[str, str]:
    from diag.tensors.elements import NAMES, named

    found = {}
    for text in texts:
        name, _, kind = text.rpartition("=")
        known = named(kind)
        if known is None or known not in NAMES:
            raise BadInput(f"--dtype {text}: no element type {kind!r}", hint="for example --dtype bfloat16, or --dtype layers.0.k_cache=float8_e5m2")
        found[name or "*"] = known
    return found


def _opened(paths: Sequence[Path], progress: terminal.Progress) -> "list[Dump]":
    """One wait for all that are new, then one after the other. BadInput: of the first that cannot be opened."""
    from diag.tensors.opening import open_dump, settle

    progress(f"opening {' and '.join(path.name for path in paths)}", 0.0)
    settle(paths)
    return [open_dump(path, settle_s=0) for path in paths]


def _donors(path: Path, progress: terminal.Progress) -> "list[Dump]":
    """One dump, or several where the folder holds nothing but folders with the same tensors in each.

    One that is still growing is found out when the comparison ends.
    """
    from diag.tensors.opening import open_dump

    inside = sorted(path.iterdir()) if path.is_dir() else []
    if len(inside) > 1 and all(item.is_dir() and not item.is_symlink() for item in inside):
        found: list[Dump] = []
        for item in inside:
            progress(f"opening {item.name}", 0.0)
            with contextlib.suppress(BadInput):  # the whole folder says what is wrong, or it is none of the dumps
                found.append(open_dump(item, settle_s=0))
        keys = [{(tensor.name, tensor.rank, tensor.step) for tensor in dump.tensors} for dump in found]
        if len(found) > 1 and any(keys[0] & others for others in keys[1:]):
            return found
    progress(f"opening {path.name}", 0.0)
    return [open_dump(path, settle_s=0)]


def _command(good: Path, bad: Path, donors: Sequence[Path], lookups: Sequence[Path], asked: dict[str, Any]) -> str:
    """This very command without its control and output, to be given once more."""
    words = ["llmdiag", "compare-dumps", str(good), str(bad)]
    for name, values in (
        ("--donors", donors), ("--map", [asked["map_file"]]), ("--block-size", [asked["block_size"]]), ("--layout", [asked["layout"]] if asked["layout"] != "auto" else []),
        ("--lookups", lookups), ("--dtype", asked["dtypes"]), ("--tolerance", asked["tolerances"]),
    ):  # fmt: skip
        for value in values:
            words += [] if value is None else [name, str(value)]
    return shlex.join(words)


def runnable(diagnosis: "Diagnosis", again: str, bad: Path, lookups: Sequence[Path], written: Path | None) -> "Diagnosis":
    """The diagnosis with commands that can be run as they stand: a query of the pairs needs the file that holds them."""
    own = f"llmdiag query {shlex.join(map(str, (bad, *lookups)))} "
    query = f"{again} -o {LATER}; llmdiag query {shlex.join((LATER, *map(str, lookups)))} "

    def one(action: "Action") -> "Action":
        run = action.run.replace("llmdiag compare-dumps GOOD BAD", again)
        return replace(action, run=query + run.removeprefix(own) if written is None and "tensor_pairs" in run and run.startswith(own) else run)

    findings = tuple(replace(item, actions=tuple(map(one, item.actions))) for item in diagnosis.findings)
    return replace(diagnosis, findings=findings, explained=tuple(replace(item, actions=tuple(map(one, item.actions))) for item in diagnosis.explained))


def _spooled(found: "Comparison", path: Path, cited: str) -> "Spooled":
    """The rows that `llmdiag analyze` would make of the document, in a file: each is ten times as long as a small tensor."""
    from diag import spool, tables
    from diag.collectors import tensors

    wanted = [table for table in tables.CORE if table.name in tensors.FEEDS]
    return spool.spool(path, wanted, lambda: _rows(found, cited), tensors.NAME)


def _rows(found: "Comparison", cited: str) -> "Iterator[Row]":
    import msgspec

    from diag.collectors import tensors
    from diag.report import tensors as report

    decode = msgspec.json.Decoder(list[tensors.Pair]).decode
    pairs = (item for piece in report.pieces(found.results) for item in decode(b"[" + piece + b"]"))
    origin = {"bundle": found.bad.name, "host": "unknown", "capture": "1"}
    for table, row in tensors.pair_rows(pairs, found.good.name, found.bad.name, cited):
        yield table, {**origin, **row}


def _diagnosed(found: "Comparison", rows: "Spooled", lookups: Sequence[Path], path: Path, asked: dict[str, Any]) -> "tuple[Evidence, Diagnosis]":
    """The rules over this comparison and the logs that were given."""
    from diag import analysis, engine, evidence, rules
    from diag.model import Artefact
    from diag.sources import Dates, Source, sources_of

    collectors = evidence.collectors_of(evidence.Extras())
    logs = sources_of(list(lookups), collectors, Dates(asked["date"], asked["tz"])) if lookups else []
    artefacts: dict[str, list[Artefact]] = {}
    for source in logs:
        for name, items in source.artefacts.items():
            artefacts.setdefault(name, []).extend(items)
    unknown = tuple(name for source in logs for name in source.unknown)
    loaded = evidence.load([Source(found.bad.name, "unknown", "1", artefacts, None, unknown=unknown)], collectors, evidence.Extras(spooled=rows))
    chosen = rules.load(rules.shipped())
    subject = analysis.subject_of(loaded, chosen, [path, *lookups])
    return loaded, engine.diagnose(loaded, chosen, {"bundle": str(path), "evidence": tuple(map(str, (path, *lookups)))}, subject)


def _document(found: "Comparison", loaded: "Evidence", diagnosis: "Diagnosis") -> Iterable[bytes]:
    from diag.report import json_
    from diag.report import tensors as report

    lookups: list[dict[str, object]] = []
    if "block_lookups" in loaded.bases:
        lookups, _ = loaded.rows("SELECT * FROM block_lookups", "--lookups", MAX_LOOKUPS)
    return report.document(found, lookups, json_.render(diagnosis))


def _write(path: Path, fill: Callable[[Path], None]) -> None:
    """Whole or not at all. LlmdiagError: it cannot be written."""
    try:
        with terminal.whole(path) as partial:
            fill(partial)
    except OSError as error:
        raise LlmdiagError(f"cannot write {path}: {error.strerror}", hint="name a writable file with -o") from error
    terminal.note(f"written: {path}")


def _write_document(path: Path, pieces: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(pieces)


def _write_pairs(path: Path, rows: "Spooled") -> None:
    """The table tensor_pairs with the types it has there. Raises OSError."""
    import duckdb

    from diag import spool

    try:
        spool.copy_to_parquet(rows, "tensor_pairs", path)
    except duckdb.IOException as error:
        raise OSError(errno.EIO, str(error).splitlines()[0].replace(str(path), path.suffix)) from error


def _show(found: "Comparison", diagnosis: "Diagnosis", *, more: bool, has_lookups: bool) -> None:
    from diag.report import screen, tensor_text

    console, width = terminal.console(), terminal.width()
    for part in tensor_text.render(found, width, has_lookups=has_lookups):
        console.print(part, highlight=False, soft_wrap=False, width=min(console.width, width))
    if diagnosis.findings:
        console.print()
        for line in screen.lines(_of_dumps(diagnosis, found), max(40, min(width, tensor_text.WIDTH)), more=more):
            console.print(line, soft_wrap=True, highlight=False)


def _of_dumps(diagnosis: "Diagnosis", found: "Comparison") -> "Diagnosis":
    """What concerns two dumps: no host, no process, and of other rules no questions that only a snapshot of one answers."""
    def beside(item: "RuleResult") -> "RuleResult":
        return replace(item, signals=tuple(signal for signal in item.signals if {*signal.unseen_tables} <= BESIDE))

    return replace(diagnosis, inconclusive=tuple(map(beside, diagnosis.inconclusive)), subject={**diagnosis.subject, "dumps": f"{found.good.name} and {found.bad.name}"})
