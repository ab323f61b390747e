"""Small programs that really enter a state: a snapshot of each names the rule, and that of its look-alike does not."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.run import snapshot

SAMPLES = Path(__file__).parents[2] / "samples"
sys.path.insert(0, str(SAMPLES))  # the labs of the samples are brought into their states by a file beside them
import states  # noqa: E402

pytestmark = pytest.mark.live

TIMES = int(os.environ.get("LLMDIAG_LAB_TIMES", "1"))
"""`make labs` takes each five times, idle and beside a neighbour that wants the processors, too."""
INCIDENTS = [
    pytest.param(f"{rule}/{state}", marks=[pytest.mark.torch] if rule in states.NEED_TORCH else [])
    for rule, known in states.STATES.items() for state in known if state.startswith("incident")
]
OTHERS = [f"{rule}/{state}" for rule, known in states.STATES.items() for state in known if not state.startswith("incident")]


@contextlib.contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Processes that want every processor."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range((os.cpu_count() or 1) if busy else 0)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize("busy", [False, True] if TIMES > 1 else [False], ids=lambda busy: "beside-a-neighbour" if busy else "idle")
@pytest.mark.parametrize("turn", range(TIMES))
@pytest.mark.parametrize("name", INCIDENTS)
def test_a_snapshot_of_the_lab_names_the_rule(name: str, turn: int, busy: bool, tmp_path: Path) -> None:
    if not states.can_enter(name):
        pytest.skip("no control group of its own, or no kernel log, here")
    with neighbour(busy), states.entered(name) as lab:
        said = snapshot(lab.pid, tmp_path / "bundle.zip")
    findings = [(found["rule"], found["verdict"]) for found in said.json["findings"]]
    assert findings and findings[0] == (name.partition("/")[0], "confirmed"), (turn, findings, said.json["inconclusive"])
    assert said.code == 1


@pytest.mark.skipif(TIMES == 1, reason="their records are judged by the matrix of rules and samples; `make labs` enters them, too")
@pytest.mark.parametrize("name", OTHERS)
def test_a_snapshot_of_its_look_alike_does_not(name: str, tmp_path: Path) -> None:
    with states.entered(name) as lab:
        said = snapshot(lab.pid, tmp_path / "bundle.zip")
    assert said.json["findings"] == [], said.json["findings"]
    assert name.partition("/")[0] in {found["rule"] for found in said.json["ruled_out"]}
