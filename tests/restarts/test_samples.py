"""The samples are what write.py writes, and the world's own ledger agrees with what is read from its logs."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag import evidence
from tests.conftest import SAMPLES

FOLDER = SAMPLES / "restarts"


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "write.py"))


def test_the_samples_are_as_written(written: dict[str, Callable[[Path], None]], tmp_path: Path) -> None:
    written["main"](tmp_path)
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(FOLDER) for path in FOLDER.glob("*/*"))
    assert [name for name in files if (tmp_path / name).read_bytes() != (FOLDER / name).read_bytes()] == []


@pytest.mark.parametrize("dies", [False, True])
def test_every_restart_is_attributed_as_it_was(written: dict[str, Any], dies: bool) -> None:
    world = written["cascade"](dies=dies)
    loaded = evidence.open_paths([FOLDER / ("crashes" if dies else "cascade")])
    found = loaded.frame("restarts").sort_values("restart")
    seconds = [(moment - written["DAY"]).total_seconds() for moment in found["died_at" if dies else "killed_at"]]
    assert len(world.restarts) == 8
    assert [int(second) for second in seconds] == [int(second) for second, _ in world.restarts]
    assert set(found["how"]) == {"self" if dies else "external"}
    if not dies:
        assert found["initiator"].tolist() == [who for _, who in world.restarts]
        assert loaded.frame("restart_links")["causal"].tolist() == [True, True, True, True, False, True, True]
