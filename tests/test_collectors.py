"""What every collector must be, whoever wrote it: the contract of diag/collectors, checked on all that are there."""

import inspect
import random
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from diag import bundle_reader, evidence, loose, sources, tables
from diag.collectors import Collector, discover, hint_of
from diag.errors import CollectorError
from diag.model import Artefact
from diag.parts import spelled_out
from tests.conftest import SAMPLES

ALL = discover()
KNOWN = tables.merged(table for module in ALL for table in module.TABLES)
BUNDLES = sorted(SAMPLES.glob("*/*.zip"))
LOOSE = sorted(path for path in SAMPLES.glob("vllm-0.32-cpu/**/*") if path.is_file() and path.suffix not in (".toml", ".md"))
FIRST_LINE = re.compile(r"[A-Z].*[.:?]")
INDENTED = re.compile(r"^ {4}\S", re.M)
TOOL = re.compile(r"(?:[A-Z][A-Z0-9_]*=\S+ )*(llmdiag|py-spy) ")
GARBAGE = (b"", b"\n", b"null\n", b"[]\n", b"{}\n", b"[[" * 50_000, b"<html>\n</html>\n", b"\xff\xfe\x00\n" * 40)

every = pytest.mark.parametrize("module", ALL, ids=lambda module: module.NAME)


@every
def test_it_declares_itself(module: Collector) -> None:
    assert str(module.__name__).rpartition(".")[2] == module.NAME  # type: ignore[attr-defined]
    assert module.FEEDS
    assert set(module.FEEDS) <= set(KNOWN)
    fed_by_others = {table for other in ALL if other is not module for table in other.FEEDS}
    assert set(module.NEEDS) <= fed_by_others
    assert module.BUDGET_S > 0
    assert module.BUDGET_BYTES > 0
    assert inspect.isgeneratorfunction(module.collect)


@every
def test_its_docstring_helps_a_person_on_call(module: Collector) -> None:
    """The first line is a sentence; a sample of the raw text stands indented below."""
    text = inspect.getdoc(module) or ""
    first = text.splitlines()[0]
    assert FIRST_LINE.fullmatch(first), first
    assert len(first.split()) >= 5
    assert INDENTED.search(text), "no sample of its raw text"


@every
def test_its_hint_is_a_command(module: Collector) -> None:
    known = hint_of(module, lambda table: ())
    for hint in (module.HINT, known):
        assert TOOL.match(hint), hint
        assert not re.search(r"\{(?!pid\})", hint), "only {pid} is filled in"


def test_nobody_feeds_a_table_that_somebody_else_feeds() -> None:
    """A note of one collector would speak for the rows of another."""
    feeders = [(table, module.NAME) for module in ALL for table in module.FEEDS]
    assert len({table for table, _ in feeders}) == len(feeders)


def test_there_are_samples() -> None:
    assert len(BUNDLES) >= 5
    assert len(LOOSE) >= 50


BESIDE = {"logs": ("versions",), "stacks": ("processes",)}


def fills(module: Collector) -> set[str]:
    """What it collects live, and what only saved files hold (strace, perf; versions in a log, processes at the head of a dump)."""
    return {*module.FEEDS, *(table.name for table in module.TABLES), *BESIDE.get(module.NAME, ())}


def artefacts(bundle: Path) -> Mapping[str, Sequence[Artefact]]:
    """Collector -> its artefacts of a recorded bundle."""
    found: dict[str, list[Artefact]] = {}
    for artefact in bundle_reader.read(bundle).artefacts:
        found.setdefault(artefact.collector, []).append(artefact)
    return found


def assert_rows(module: Collector, given: Sequence[Artefact]) -> int:
    """Rows have only columns that are declared, and say where they come from. Returns how many there were."""
    rows = [(table, one) for table, row in module.parse(given) for one in spelled_out(row)]
    for table, row in rows:
        if table == "collected":
            assert {"table_name", "status"} <= set(row) <= {"table_name", "status", "reason"}
            assert str(row["table_name"]).split(".")[0] in fills(module)
            assert row["status"] in ("ok", "partial", "failed", "skipped")
            continue
        assert table in fills(module)
        assert set(row) <= set(KNOWN[table].column_names), table
        assert isinstance(row["source"], str)
        assert re.split(r"[:#]", row["source"])[0] in {artefact.path for artefact in given}
    return len(rows)


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_rows_of_recorded_bundles(bundle: Path) -> None:
    found = artefacts(bundle)
    assert {"processes", "threads", "stacks", "sockets"} <= set(found)
    for module in ALL:
        given = found.get(module.NAME, [])
        assert (assert_rows(module, given) > 0) == any(artefact.bytes() for artefact in given), module.NAME


@pytest.mark.parametrize("folder", sorted({path.parent for path in LOOSE}), ids=lambda path: path.name)
def test_rows_of_loose_files(folder: Path) -> None:
    (source,) = sources.sources_of([folder], ALL)
    assert set(source.unknown) <= {"README.md", "sample.toml"}
    for module in ALL:
        if module.NAME in source.artefacts:
            assert assert_rows(module, source.artefacts[module.NAME]) > 0


@pytest.mark.parametrize("path", LOOSE, ids=lambda path: "/".join(path.parts[-2:]))
def test_one_collector_recognises_a_loose_file(path: Path) -> None:
    with path.open("rb") as stream:
        head = stream.read(loose.HEAD_BYTES)
    assert len([module.NAME for module in ALL if module.recognise(path.name, head)]) == 1


def members(bundle: Path) -> Iterator[tuple[str, str, bytes]]:
    """(collector, name, content) of every artefact."""
    with zipfile.ZipFile(bundle) as archive:
        for entry in archive.namelist():
            if entry.startswith("artefacts/"):
                _, collector, name = entry.split("/", 2)
                yield collector, name, archive.read(entry)


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_artefacts_taken_out_of_a_bundle_are_nobody_elses(bundle: Path) -> None:
    """Copied out of a bundle by hand, a file finds its own collector or none (environ.jsonl and key lists say too little)."""
    for collector, name, content in members(bundle):
        claimed = {module.NAME for module in ALL if content and module.recognise(name, content[: loose.HEAD_BYTES])}
        assert claimed <= {collector}, name


def of_each_kind(mine: Sequence[Artefact]) -> list[Artefact]:
    """The first and the last of those whose names differ in a number only: a sample of stacks is like the next."""
    kinds: dict[str, list[Artefact]] = {}
    for artefact in mine:
        kinds.setdefault(re.sub(r"\d+", "0", artefact.path), []).append(artefact)
    return [artefact for alike in kinds.values() for artefact in dict.fromkeys((alike[0], alike[-1]))]


@every
def test_any_text_in_the_place_of_an_artefact_is_a_named_error_at_worst(module: Collector) -> None:
    """Whole, half, or somebody else's: parse() yields rows or raises a CollectorError, nothing else."""
    chance = random.Random(7)
    for bundle in BUNDLES:
        mine = artefacts(bundle).get(module.NAME, [])
        for artefact in of_each_kind(mine):
            whole = artefact.bytes()
            cut = chance.randrange(len(whole)) if whole else 0
            for content in (*GARBAGE, chance.randbytes(3000), whole[:cut], whole[:cut] + b"\0" + whole[cut:], whole.replace(b"1", b"-1e400", 20)):
                changed = [Artefact.of_bytes(a.path, a.collector, content if a is artefact else a.bytes()) for a in mine]
                try:
                    assert_rows(module, changed)
                except CollectorError as error:
                    assert error.message


@every
def test_what_it_cannot_read_is_not_collected(module: Collector) -> None:
    """Random bytes for one artefact: at least one of its tables is not collected, in whatever bundle."""
    free_text = re.compile(r"environ\.jsonl|logs/\d+-.*")  # feeds no table; a log may say anything
    for bundle in BUNDLES[:3]:
        opened = bundle_reader.read(bundle)
        mine = artefacts(bundle).get(module.NAME, [])
        for artefact in of_each_kind(mine):
            if free_text.search(artefact.path):
                continue
            changed = [Artefact.of_bytes(a.path, a.collector, random.Random(3).randbytes(2000) if a is artefact else a.bytes()) for a in mine]
            source = sources.Source("b", "h", "1", {module.NAME: changed}, opened.manifest.collectors, opened.manifest)
            said = {item.table_name for item in evidence.load([source], [module]).collected if item.status != "ok"}
            assert said & set(module.FEEDS), artefact.path
