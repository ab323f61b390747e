"""Whose process the kernel killed: a pid alone does not say so, it can be used again."""

import datetime

import pandas as pd
import pytest

from diag.derive import memory_kills

AT = datetime.datetime(2026, 3, 16, 4, 51, 30)
LINE = "Memory cgroup out of memory: Killed process 5214 (python3) total-vm:512kB, anon-rss:256kB, file-rss:0kB"
ORIGIN = {"bundle": "loose", "host": None, "capture": "0"}
EVENTS = pd.DataFrame([{**ORIGIN, "kind": "oom_kill", "ts": AT, "origin": "dmesg", "pid": None, "unit": None, "detail": LINE, "source": "dmesg.txt:2"}])


@pytest.mark.parametrize(
    ("started_at", "ours"), [(AT - datetime.timedelta(hours=1), True), (AT, True), (AT + datetime.timedelta(minutes=11), False), (None, True)]
)
def test_a_process_that_began_after_the_kill_is_not_the_victim(started_at: datetime.datetime | None, ours: bool) -> None:
    processes = pd.DataFrame([{**ORIGIN, "pid": 5214, "started_at": started_at}]).astype({"started_at": "datetime64[us]"})
    found = memory_kills.derive({"host_events": EVENTS, "processes": processes})["memory_kills"]
    assert found[["pid", "of_service", "resident_bytes"]].values.tolist() == [[5214, ours, 256 * 1024]]
