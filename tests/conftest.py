"""Fixtures that every test folder shares."""

import importlib.util
import json
import os
import signal
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from diag import evidence
from diag.evidence import Evidence, Extras
from diag.manifest import CollectorRun, Note
from diag.model import Artefact
from diag.sources import Source

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "samples"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # run in the background of a script: what the tests start would be deaf to Ctrl-C as well
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # under nohup: what the tests start would outlive a terminal that is closed
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# where no bytecode may be written, each of the thousand processes that the tests start would compile llmdiag anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A collector that takes its rows as they are: dropped into a folder of its own, like a stranger's would be.
ROWS_COLLECTOR = '''
"""Rows as they are, for tests.

Sample: {"table": "threads", "pid": 1}
"""
import json
NAME = "rows"
NEEDS = ()
TABLES = ()
BUDGET_S = 1.0
BUDGET_BYTES = 1 << 20
HINT = "llmdiag snapshot {pid}"
FEEDS = ()
def collect(patient, door):
    return
    yield
def recognise(name, head):
    return name == "rows.jsonl"
def parse(artefacts):
    for artefact in artefacts:
        for number, line in artefact.lines():
            row = json.loads(line)
            yield row.pop("table"), {"source": artefact.at(number), **row}
'''

LONG = (
    "test_hostile_evidence.py", "test_cluster.py", "test_sentinel.py", "test_install.py", "test_docs.py", "test_jail.py", "test_archive.py",
    "test_query.py", "test_lab_dumps.py", "test_lookup_rules.py",
    "test_recovery_lab.py", "test_prefix_demo.py", "test_broken_collectors.py", "test_cascade_lab.py", "test_ghost.py",
)  # fmt: skip
"""Files that take minutes: they come first, so that none of them is alone in the end. The labs of two of them keep time: not both at once."""

UNHURRIED = frozenset((
    "derive", "lookups", "parsers", "restarts", "tensors", "views",
    "test_collectors.py", "test_columns.py", "test_corpus.py", "test_engine.py", "test_handoff.py", "test_html.py", "test_lineage.py",
    "test_prefix_engine.py", "test_redact.py", "test_report.py", "test_report_plots.py", "test_report_sections.py", "test_rule_words.py",
    "test_rules.py", "test_slow_rules.py",
))  # fmt: skip
"""Folders and files that need a processor and nothing else, whenever there is one: `make test` runs them while those of labs wait."""

MATRIX, PARTS = "::test_matrix[", 32
"""Every rule on every sample takes minutes: its samples go to the workers in parts, which are short and therefore come last."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "unhurried: needs a processor and nothing else (given by tests/conftest.py)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` looks at the marks."""
    for item in items:
        if not UNHURRIED.isdisjoint((item.path.name, item.path.parent.name)):
            item.add_marker("unhurried")
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if MATRIX in item.nodeid:
        return len(LONG) + 1
    return LONG.index(item.path.name) if item.path.name in LONG else len(LONG)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`: a file to a worker, but the matrix in parts; the same sample is always in the same part."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class InParts(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return f"{file}, part {zlib.crc32(nodeid.encode()) % PARTS}" if MATRIX in nodeid else file

    return InParts(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `torch` say why they did not run, rather than fail, where it is not installed."""
    if item.get_closest_marker("torch") is not None and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed here; pip install 'llmdiag[torch]' runs this test too")


MakeCase = Callable[..., Evidence]


@pytest.fixture
def make_case(tmp_path: Path) -> MakeCase:
    """`make_case({"threads": [row, …]}, collected=["threads"], notes={"sockets": "denied"})` -> Evidence.

    Tables named in `collected` were read; every other table was not.
    """

    def build(
        rows: Mapping[str, Sequence[Mapping[str, object]]],
        collected: Sequence[str] = (),
        notes: Mapping[str, str] | None = None,
        extras: Extras | None = None,
    ) -> Evidence:
        folder = tmp_path / "extra_collectors"
        folder.mkdir(exist_ok=True)
        (folder / "rows.py").write_text(ROWS_COLLECTOR)
        (module,) = evidence.discover_collectors(folder)
        module.FEEDS = tuple(collected)
        lines = [json.dumps({"table": table, **row}, default=str) for table, found in rows.items() for row in found]
        artefact = Artefact.of_bytes("rows/rows.jsonl", "rows", "\n".join(lines).encode() if lines else b"")
        run = CollectorRun("ok", 0.1, None, tuple(collected), tuple(Note(t, "failed", why) for t, why in (notes or {}).items()))
        source = Source("case", "host-a", "1", {"rows": [artefact]}, {"rows": run})
        return evidence.load([source], [module], extras)

    return build
