"""Whatever a report says is missing, the command it prints collects it: every one is run as it stands."""

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diag import evidence
from diag.collectors import Collector, discover
from diag.evidence import Evidence
from diag.labs import Lab, damaged_image, start_lab, start_server, wait_until
from tests.conftest import SAMPLES
from tests.live.ghost_lab import GHOST_LAB, ghost_key
from tests.live.run import llmdiag

pytestmark = pytest.mark.live

WAIT_S = 60.0
UNREAD = {"gpu"}
"""Collectors whose tables no rule reads: nothing of theirs is ever printed as missing."""
BY_HAND = {"events", "lookups", "repro", "tensors"}
"""Collectors that only read what somebody hands in: the words in capitals of their commands are for him to fill in."""
RESTARTS, DUMPS = SAMPLES / "restarts" / "cascade", SAMPLES / "prefix-block-mismatch" / "dumps"
FILLED = {
    "KV_EVENTS_FILE": SAMPLES / "vllm-kv-events" / "walk", "LOOKUP_LOG": SAMPLES / "prefix-cache" / "hole-in-lookup" / "lookups.log",
    "PATHS": SAMPLES / "vllm-0.32-cpu" / "idle" / "metrics1.txt", "ACCESS_LOG": RESTARTS / "access.log", "ENGINE_LOG": RESTARTS / "vllm.log",
    "JOURNAL": RESTARTS / "journal.log", "WATCHDOG_LOG": RESTARTS / "watchdog.log", "MAP": RESTARTS / "events-map.toml",
    "GOOD": DUMPS / "good", "BAD": DUMPS / "bad",
}  # fmt: skip


@dataclass
class World:
    """A service that hangs, and the bundles that printed commands made of it."""

    folder: Path
    lab: Lab
    bundles: dict[str, Path] = field(default_factory=dict)
    """Command -> the bundle it wrote."""
    opened: dict[Path, Evidence] = field(default_factory=dict)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("printed")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_server(folder))
        options = ("--redis", server.tcp_url, "--ghost", "marker", "--workers", "2", "--backoff-ms", "1")  # it burns a core otherwise
        lab = stack.enter_context(start_lab(GHOST_LAB, *options, log=folder / "lab.log"))
        image = damaged_image()
        lab.post_later(image)
        wait_until(lambda: ghost_key(image).encode() in server.key_names(), WAIT_S)
        yield World(folder, lab)


def printed(found: Mapping[str, Any]) -> dict[str, set[str]]:
    """Command -> tables that it is said to collect."""
    commands: dict[str, set[str]] = {}
    for result in (*found["findings"], *found["inconclusive"]):
        for item in result["missing"]:
            assert item["collect"], item
            for command in item["collect"]:
                commands.setdefault(command, set()).update(item["tables"])
    return commands


def run(world: World, command: str) -> Path:
    """Run a printed command as a person would, in a folder of its own. Returns the bundle it wrote; each is run once."""
    if command not in world.bundles:
        folder = world.folder / f"run-{len(world.bundles)}"
        folder.mkdir()
        words = shlex.split(command)
        given = {}
        while "=" in words[0]:
            name, _, given[name] = words.pop(0).partition("=")
        assert words[0] == "llmdiag", command
        said = llmdiag(*words[1:], cwd=folder, **given)
        assert said.code in (0, 1, 3), f"{command}\n{said.err}"
        (world.bundles[command],) = folder.glob("*.zip")
    return world.bundles[command]


LIVE = [module for module in discover() if module.NAME not in BY_HAND]
HANDED_IN = {"block_lookups", "kv_events", "tensors", "tensor_pairs", "prefix_runs", "prefix_trials", "watchdog_rules", "event_files"}
"""Tables that a signal may want beside those of the patient; another of its commands collects them."""


@pytest.mark.parametrize("module", LIVE, ids=lambda module: module.NAME)
def test_the_printed_command_collects_what_was_withheld(world: World, module: Collector) -> None:
    bundle = world.folder / f"without-{module.NAME}.zip"
    said = llmdiag("snapshot", str(world.lab.pid), "-o", str(bundle), "-f", "json", "--window", "2", "--skip", module.NAME)
    withheld = [item for item in said.json["collected"] if item["collector"] == module.NAME]
    assert {item["table_name"] for item in withheld} == set(module.FEEDS)
    assert all(item["status"] == "skipped" for item in withheld)
    commands = printed(said.json)
    missing = {table.split(".")[0] for tables in commands.values() for table in tables}
    asked = bool(missing & set(module.FEEDS))
    assert not (asked and module.NAME in UNREAD)
    if any(finding["rule"] == "ghost-key-retry-loop" for finding in said.json["findings"]):  # what no finding needs is not asked for
        assert asked == (module.NAME not in UNREAD)
    for command, tables in commands.items():
        if for_hands(command):
            continue
        from_the_patient = {table.split(".")[0] for table in tables} - HANDED_IN
        assert_collected(world, run(world, command), from_the_patient | (set(module.FEEDS) & missing))


@pytest.mark.parametrize("module", LIVE, ids=lambda module: module.NAME)
def test_the_hint_of_a_collector_collects_all_its_tables(world: World, module: Collector) -> None:
    """Also those no rule reads yet; filled with what evidence of everything else knows."""
    bundle = world.folder / f"without-{module.NAME}.zip"
    for table in module.FEEDS:
        command = opened(world, bundle).hints[table].replace("{pid}", str(world.lab.pid))
        assert_collected(world, run(world, command), {table})


def for_hands(command: str) -> bool:
    """Is there something in it to fill in?"""
    return any(word.isupper() for word in shlex.split(command))


def test_the_commands_for_files_collect_them(tmp_path: Path) -> None:
    """Filled in as somebody would who has those files. (An experiment needs an endpoint: tests/repro.)"""
    hints = evidence.load([], discover()).hints
    commands: dict[str, set[str]] = {}
    for table, command in hints.items():
        if for_hands(command) and "repro-prefix" not in command:
            commands.setdefault(command, set()).add(table)
    assert len(commands) >= 6, commands
    for command, tables in commands.items():
        words = [str(FILLED[word]) if word.isupper() else word for word in shlex.split(command)[1:]]
        said = llmdiag(*words, "-f", "json", cwd=tmp_path)
        assert said.code in (0, 1, 3), f"{command}\n{said.err}"
        if "comparison.json" in words:
            said = llmdiag("analyze", "comparison.json", "-f", "json", cwd=tmp_path)
        seen = {item["table_name"]: item["status"] for item in said.json["collected"] if item["status"] != "skipped"}
        rows = {table.split(".")[0] for table in tables}
        assert {seen.get(table) for table in rows} == {"ok"}, f"{command}: {seen}"


def opened(world: World, bundle: Path) -> Evidence:
    if bundle not in world.opened:
        world.opened[bundle] = evidence.open_paths([bundle])
    return world.opened[bundle]


def assert_collected(world: World, bundle: Path, tables: set[str]) -> None:
    """Every one was looked at by whoever feeds it."""
    for table in tables:
        found = {(item.collector, item.status, item.reason) for item in opened(world, bundle).collected if item.table_name == table}
        assert found
        assert all(status == "ok" for _, status, _ in found), found
