"""Logs and maps that make no sense: times at the ends of the calendar, rules of a billion years. They cost themselves only."""

import json
from pathlib import Path

import pytest

from tests.live.run import llmdiag

MAP = """
[[event]]
file = "wd.log"
kind = "restart"
initiator = "dog"
regex = '^(?P<ts>[^|]+)\\| restarting (?P<unit>\\S+)'
period_s = 1e9
timeout_s = 1e9
strikes = 1000000

[[event]]
file = "wd.log"
kind = "probe_failed"
initiator = "dog"
regex = '^(?P<ts>[^|]+)\\| failed'
unit = "vllm"
"""
STAMPS = (
    "0001-01-01 00:00:00+14:00", "0001-01-01T00:00:00Z", "0002-01-01 00:00:00Z", "1969-12-31 23:59:59Z", "2026-01-01 10:00:00Z", "2026-01-01 10:00:00Z", "9998-12-31 23:59:59Z",
    "9999-12-31 23:59:59.999999999Z", "9999-12-31 23:59:59-14:00", "9999999999999", "000000000", "2026-13-32 25:61:61", "2026-01-01 10:00:00 +99:99",
)  # fmt: skip


@pytest.mark.parametrize("command", ["analyze", "recovery"])
@pytest.mark.parametrize("zone", ["UTC", "+14:00", "America/New_York"])
def test_times_at_the_ends_of_the_calendar_end_in_an_answer(tmp_path: Path, command: str, zone: str) -> None:
    (tmp_path / "map.toml").write_text(MAP)
    (tmp_path / "wd.log").write_text("".join(f"{stamp}| failed\n{stamp}| restarting vllm\n" for stamp in STAMPS))
    said = llmdiag(command, str(tmp_path / "wd.log"), "--events-map", str(tmp_path / "map.toml"), "--tz", zone, "-f", "json")
    assert "Traceback" not in said.err, said.err
    assert said.code in ((0, 1, 3) if command == "analyze" else (0,)), said
    assert json.loads(said.out)["schema"].startswith("llmdiag."), said.out
