"""What is assumed of logs stands on the first screen, a death is no plain CLEAR, and what is to be done fits what was found."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import SAMPLES
from tests.live.run import llmdiag

FALSE_KILL = SAMPLES / "restarts" / "false-kill"
MEMORY = SAMPLES / "device-memory"


def screen(*words: object) -> str:
    """The first screen, unwrapped."""
    said = llmdiag("analyze", *map(str, words), COLUMNS="100")
    assert said.code in (0, 1, 3), said.err
    return " ".join(said.out.split())


def moved(folder: Path, hours: int) -> Path:
    """The engine's log of the sample, its clock so many hours ahead."""
    shutil.copytree(FALSE_KILL, folder)
    log = folder / "vllm.log"
    text = log.read_text()
    for hour in range(23 - hours, -1, -1):
        text = text.replace(f" 06-10 {hour:02d}:", f" 06-10 {hour + hours:02d}:")
    log.write_text(text)
    return folder


def test_an_assumed_zone_and_year_are_said() -> None:
    assert "Assumed no zone in vllm.log: UTC taken (--tz); no year in vllm.log: 2026 taken (--date)" in screen(FALSE_KILL / "vllm.log")
    beside_dated = screen(FALSE_KILL)
    assert "Assumed no zone in 2 logs: UTC taken (--tz)" in beside_dated and "no year" not in beside_dated, "the journal beside it has the year of that day"
    assert "no year" not in screen(FALSE_KILL, "--date", "2026") and "Assumed" not in screen(FALSE_KILL, "--date", "2026", "--tz", "UTC")


@pytest.mark.parametrize("hours", [2, 8])
def test_a_log_of_another_zone_is_suspected_and_the_zone_named(tmp_path: Path, hours: int) -> None:
    folder = moved(tmp_path / "moved", hours)
    assert f"Assumed WRONG ZONE? vllm.log lies {hours} hours after the other logs: --tz +{hours:02d}:00" in screen(folder)
    for form in ("text", "md"):
        assert "WRONG ZONE?" in llmdiag("report", str(folder), "-f", form).out


def test_logs_of_different_days_are_said_to_have_no_time_in_common(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "recoveries" / "cold-start" / "vllm.log", tmp_path / "vllm.log")
    (tmp_path / "journal.log").write_text("2026-06-20T09:00:00.000000+00:00 gpu-1 systemd[1]: Started vllm.service - vLLM server.\n")
    assert "the logs have no time in common: vllm.log ends 2026-06-10" in screen(tmp_path)


def test_an_entry_of_a_map_that_meets_nothing_is_said(tmp_path: Path) -> None:
    entry = '[[event]]\nfile = "%s"\nkind = "restart"\ninitiator = "dog"\nregex = \'^(?P<ts>\\S+ \\S+) %s\'\n'
    (tmp_path / "map.toml").write_text(entry % ("nothing-*.log", "x") + entry % ("watchdog.log", "never written"))
    shutil.copy(FALSE_KILL / "watchdog.log", tmp_path / "watchdog.log")
    shutil.copy(FALSE_KILL / "vllm.log", tmp_path / "vllm.log")
    found = screen(tmp_path / "vllm.log", tmp_path / "watchdog.log", "--events-map", tmp_path / "map.toml", "--date", "2026", "--tz", "UTC")
    assert "event 1 (restart by dog): no file matches 'nothing-*.log'" in found
    full = llmdiag("report", str(tmp_path), "-f", "md").out
    assert "its regex matched no line of" in full


def test_a_log_may_have_a_zone_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "dog.log").write_text("2026-06-10 11:25:46 restarting vllm\n")
    entry = '[[event]]\nfile = "dog.log"\nkind = "restart"\ninitiator = "dog"\ntz = "%s"\nregex = \'^(?P<ts>\\S+ \\S+) restarting (?P<unit>\\S+)\'\n'
    (tmp_path / "map.toml").write_text(entry % "Europe/Berlin")
    said = llmdiag("query", str(tmp_path), "SELECT strftime(h.ts, '%H:%M:%S') AS at, f.assumed FROM host_events h, event_files f WHERE f.format = 'map'", "-f", "json")
    assert said.json["rows"] == [{"at": "09:25:46", "assumed": None}]
    (tmp_path / "map.toml").write_text(entry % "Europe/Nowhere")
    said = llmdiag("analyze", str(tmp_path))
    assert said.code == 2 and "event 1: tz: 'Europe/Nowhere' is not a time zone" in said.err, said.err


def test_a_death_that_no_rule_explains_is_said(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    head = (SAMPLES / "recoveries" / "cold-start" / "vllm.log").read_text()
    log.write_text(head + "(APIServer pid=5100) INFO 06-10 09:30:00 [api_server.py:1024] vLLM API server version 0.18.1\n")
    journal = tmp_path / "journal.log"
    journal.write_text(
        "2026-06-10T09:00:00.000000+00:00 gpu-1 systemd[1]: Started vllm.service - vLLM server.\n"
        "2026-06-10T09:29:55.000000+00:00 gpu-1 systemd[1]: vllm.service: Main process exited, code=killed, status=11/SEGV\n"
    )
    found = screen(tmp_path)
    assert "Died 1 death seen (" in found and "vllm: the engine died" in found, found
    assert "no rule knows its cause; dmesg -T" in found and "llmdiag recovery" in found


DONE = {
    "tenant-holds": ("device-memory-taken", "1 Ask whose program that is, and stop it", "ps -o pid,ppid,user,lstart,args -p 6200"),
    "share-too-large": ("memory-not-reclaimed", "1 Lower the pool share", "--gpu-memory-utilization 0.92"),
    "slow-reclaim": ("memory-not-reclaimed", "1 Wait for the reclaim record", "memory.free"),
    "orphan-holds": ("memory-not-reclaimed", "1 Write a script that ends the orphan", "--orphans-script"),
}


@pytest.mark.parametrize("name", DONE)
def test_what_to_do_about_memory_fits_who_holds_it(name: str) -> None:
    rule, title, command = DONE[name]
    found = screen(MEMORY / name)
    assert rule in found[:60] and title in found and command in found, found
    assert ("--orphans-script" in found) == (name == "orphan-holds")


@pytest.mark.parametrize("name", ["cascade", "false-kill"])
def test_a_watchdog_that_ends_what_works_is_stopped_first(name: str) -> None:
    assert "Do next 1 Stop" in screen(SAMPLES / "restarts" / name)


def test_a_map_that_a_glob_leaves_behind_is_said() -> None:
    cascade = SAMPLES / "restarts" / "cascade"
    logs = [str(path) for path in sorted(cascade.glob("*.log"))]
    assert f"--events-map {cascade / 'events-map.toml'}" in llmdiag("analyze", *logs).err
    assert "events-map" not in llmdiag("analyze", *logs, "--events-map", str(cascade / "events-map.toml")).err
