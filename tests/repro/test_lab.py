"""The incident's experiment on an engine that has the incident's bug, and on the same engine without it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cache.cli import run
from tests.conftest import SAMPLES

LAB = SAMPLES / "prefix-block-mismatch"
QUICK = ("--rate", "10000", "--every", "3", "--control", "5", "--max-tokens", "6", "--limit", "500")
pytestmark = [pytest.mark.torch, pytest.mark.live]


@contextmanager
def lab(lookup: str, folder: Path) -> Iterator[str]:
    """URL of a running lab."""
    argv = [sys.executable, str(LAB / "lab.py"), "--lookup", lookup, "--dump-dir", str(folder / "dumps"), "--lookup-log", str(folder / "lookups.log")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield f"http://127.0.0.1:{json.loads(line)['port']}"
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_binary_search_is_reproduced(tmp_path: Path) -> None:
    with lab("binary", tmp_path) as url:
        said = run("repro-prefix", url, str(LAB / "prompts.jsonl"), *QUICK, "-f", "json", "-o", "repro.json", cwd=tmp_path)
    assert said.code == 1, said
    found = said.json
    baseline, control, pressure = found["arms"]
    assert (baseline["failures"], control["failures"]) == (0, 0)
    assert pressure["failures"] > 0 and pressure["sticky_at_once"] > 0.5
    assert found["bypass"]["by"] == "cache_salt" and found["bypass"]["proven"]
    first = next(item for item in found["trials"] if item["reproduced"])
    report = run("report", "repro.json", "lookups.log", cwd=tmp_path)
    assert "CONFIRMED prefix-block-mismatch: block" in report.out.splitlines()[0] and "of request cmpl-" in report.out.splitlines()[0], report
    assert f"In the engine's log it is request {first['request']}:" in report.out and f"-e {first['request']} " in report.out
    assert "the experiment has it: request cmpl-" in " ".join(report.out.split())
    assert f"schedule prefill, requestId={first['request']}\n" in (tmp_path / "lookups.log").read_text(encoding="utf-8")
    assert first["hit"] is True and first["answer_class"] in ("empty", "cut-short", "garbled", "echo", "different")


def test_a_linear_walk_is_not(tmp_path: Path) -> None:
    with lab("linear", tmp_path) as url:
        said = run("repro-prefix", url, str(LAB / "prompts.jsonl"), *QUICK, "--fills", "2", "-f", "json", cwd=tmp_path)
        short = run("repro-prefix", url, str(LAB / "prompts.jsonl"), *QUICK, "--limit", "20", cwd=tmp_path)
    assert said.code == 0, said
    assert said.json["cache"]["evicted"] > 0
    assert short.code == 3 and short.out.startswith("NOT EXERCISED"), short
