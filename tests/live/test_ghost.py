"""The ghost key incident on live labs: found, proved, told apart from honest load, healed."""

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.labs import Lab, Server, damaged_image, start_lab, start_server, wait_until
from tests.live.ghost_lab import GHOST_LAB, ghost_key
from tests.live.run import llmdiag, snapshot

pytestmark = pytest.mark.live

GHOSTS = ("marker", "constant", "none", "null-marker", "truncated", "stale-version")
SECOND_LAB = Path(__file__).parent / "second_lab.py"
WAIT_S = 60.0
SHORT = ("--window", "2")
"""Every kind of test has one snapshot of the length a person gets unasked; its variants are shorter."""
PAUSED = ("--backoff-ms", "1")
"""Every kind of test has one lab that spins; its variants leave a core to the others."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with start_server(tmp_path) as running:
        yield running


@contextlib.contextmanager
def lab_of(server: Server, tmp_path: Path, *args: str, url: str | None = None) -> Iterator[Lab]:
    with start_lab(GHOST_LAB, "--redis", url or server.tcp_url, *args, log=tmp_path / "lab.log") as lab:
        yield lab


def plant(lab: Lab, server: Server, ghost: str, count: int = 1) -> list[str]:
    """Send damaged images that will hang; return their keys once the cache holds them all."""
    images = [damaged_image() for _ in range(count)]
    for image in images:
        lab.post_later(image)
    keys = [ghost_key(image, ghost) for image in images]
    wait_until(lambda: {key.encode() for key in keys} <= set(server.key_names()), WAIT_S)
    return keys


def assert_confirmed(found: dict[str, Any], keys: list[str]) -> None:
    first = found["findings"][0]
    assert (first["rule"], first["verdict"]) == ("ghost-key-retry-loop", "confirmed"), found["findings"] or found["inconclusive"]
    proofs = {row["key"] for item in first["evidence"] if item["role"] == "proof" for row in item["rows"]}
    assert proofs
    assert proofs <= set(keys)
    assert all(row["source"] for item in first["evidence"] for row in item["rows"])


@pytest.mark.parametrize("ghost", GHOSTS)
def test_one_of_four_workers_is_lost(server: Server, tmp_path: Path, ghost: str) -> None:
    with lab_of(server, tmp_path, "--ghost", ghost, "--workers", "4", *(() if ghost == "marker" else PAUSED)) as lab:
        keys = plant(lab, server, ghost)
        assert lab.get("/health").status == 200
        said = snapshot(lab.pid, tmp_path / "b.zip", *(() if ghost == "marker" else SHORT))
    assert said.code == 1
    assert_confirmed(said.json, keys)


@pytest.mark.parametrize("backoff_ms", [0, 1, 10])
def test_all_workers_are_lost(server: Server, tmp_path: Path, backoff_ms: int) -> None:
    with lab_of(server, tmp_path, "--ghost", "marker", "--workers", "4", "--backoff-ms", str(backoff_ms)) as lab:
        keys = plant(lab, server, "marker", 4)
        wait_until(lambda: lab.get("/health").status == 503, WAIT_S)
        said = snapshot(lab.pid, tmp_path / "b.zip", *(SHORT if backoff_ms == 1 else ()))
    assert said.code == 1
    assert_confirmed(said.json, keys)


def test_over_a_unix_socket(server: Server, tmp_path: Path) -> None:
    with lab_of(server, tmp_path, "--ghost", "marker", *PAUSED, url=server.url) as lab:
        keys = plant(lab, server, "marker")
        assert_confirmed(snapshot(lab.pid, tmp_path / "b.zip", *SHORT).json, keys)


@pytest.mark.parametrize("load", [["--busy"], []], ids=["busy", "idle"])
def test_honest_service_is_clear(server: Server, tmp_path: Path, load: list[str]) -> None:
    with lab_of(server, tmp_path, "--no-ghost", *load) as lab:
        if load:
            wait_until(lambda: lab.metrics()["vllm:request_success_total"] > 50, WAIT_S)
        said = snapshot(lab.pid, tmp_path / "b.zip")
    assert (said.code, said.json["verdict"], said.json["findings"]) == (0, "clear", [])


def test_redis_withheld_is_likely_and_names_the_command(server: Server, tmp_path: Path) -> None:
    with lab_of(server, tmp_path, "--ghost", "marker") as lab:
        plant(lab, server, "marker")
        said = snapshot(lab.pid, tmp_path / "b.zip", "--skip", "redis", *SHORT)
    first = said.json["findings"][0]
    assert (said.code, first["rule"], first["verdict"]) == (1, "ghost-key-retry-loop", "likely")
    commands = {command for item in first["missing"] if "cache_keys" in item["tables"] for command in item["collect"]}
    assert any("llmdiag snapshot" in command and "LLMDIAG_REDIS_URL" in command for command in commands)


def test_rare_reads_and_redis_withheld_do_not_acquit(server: Server, tmp_path: Path) -> None:
    """No sample falls on a read, and what the thread holds cannot be looked up: nobody knows."""
    with lab_of(server, tmp_path, "--ghost", "marker", "--backoff-ms", "10") as lab:
        plant(lab, server, "marker")
        said = snapshot(lab.pid, tmp_path / "b.zip", "--skip", "redis", "--skip", "sockets")
    assert "ghost-key-retry-loop" not in {item["rule"] for item in said.json["ruled_out"]}
    opened = said.json["findings"] + said.json["inconclusive"]
    missing = [item for rule in opened if rule["rule"] == "ghost-key-retry-loop" for item in rule["missing"]]
    assert any("cache_keys" in item["tables"] and item["collect"] for item in missing)
    assert said.code in (1, 3)


def test_the_printed_commands_heal_and_can_be_undone(server: Server, tmp_path: Path) -> None:
    with lab_of(server, tmp_path, "--ghost", "marker", "--workers", "1", *PAUSED) as lab:
        image = damaged_image()
        hung = lab.post_later(image)
        wait_until(lambda: ghost_key(image).encode() in server.key_names(), WAIT_S)
        before = {key: server.client().get(key) for key in server.key_names()}
        said = snapshot(lab.pid, tmp_path / "b.zip", *SHORT)
        action = said.json["findings"][0]["actions"][0]
        done = llmdiag(*shlex.split(action["run"])[1:], "--yes", "--backup", str(tmp_path / "purged"), "-f", "json").json["purge"]
        assert (done["deleted"], done["failed"]) == (1, 0)
        assert hung.result(WAIT_S).status == 200
        assert lab.get("/health").status == 200
    server.client().delete(ghost_key(image))
    undo = shlex.split(action["undo"].replace("BACKUP", str(tmp_path / "purged")))[1:]
    assert llmdiag(*undo, "-f", "json").json["restored"] == 1
    assert {key: server.client().get(key) for key in before} == before


def test_a_copy_in_the_process_is_said(server: Server, tmp_path: Path) -> None:
    with lab_of(server, tmp_path, "--ghost", "marker", "--l1-holds-ghost", "--l1-ttl", "600", *PAUSED) as lab:
        keys = plant(lab, server, "marker")
        said = snapshot(lab.pid, tmp_path / "b.zip", *SHORT)
        assert_confirmed(said.json, keys)
        text = llmdiag("report", str(tmp_path / "b.zip")).out
    assert "frees nobody before the L1 entry expires" in " ".join(text.split())


@pytest.mark.parametrize("lost", [1, 4])
def test_the_second_lab(server: Server, tmp_path: Path, lost: int) -> None:
    """Written from the incident report alone by somebody who had seen neither rule nor first lab."""
    with start_lab(SECOND_LAB, "--redis", server.tcp_url, "--workers", "4", log=tmp_path / "lab.log") as lab:
        before = set(server.key_names())
        for number in range(lost):
            lab.post_later(b"BROKEN %d" % number, path="/embed")
        wait_until(lambda: len(set(server.key_names()) - before) == lost, WAIT_S)
        keys = [key.decode() for key in set(server.key_names()) - before]
        said = snapshot(lab.pid, tmp_path / "b.zip")
    assert said.code == 1
    assert_confirmed(said.json, keys)


def test_first_line_names_rule_verdict_and_key(server: Server, tmp_path: Path) -> None:
    with lab_of(server, tmp_path, "--ghost", "marker", *PAUSED) as lab:
        (key,) = plant(lab, server, "marker")
        snapshot(lab.pid, tmp_path / "b.zip", *SHORT)
    first = llmdiag("analyze", str(tmp_path / "b.zip")).out.splitlines()[0]
    assert first == f"CONFIRMED ghost-key-retry-loop: {key}"


def test_demo_heals() -> None:
    said = llmdiag("demo", "ghost-key")
    assert said.code == 0, said.err
    assert "CONFIRMED ghost-key-retry-loop: clip-vit-b-32:image:" in said.out
    assert "The hung requests are answered" in said.out


def test_demo_with_nothing_planted_ends_clear() -> None:
    said = llmdiag("demo", "ghost-key", "--no-ghost")
    assert said.code == 0, said.err
    assert "CLEAR" in said.out
    assert "CONFIRMED" not in said.out


def test_demo_with_a_broken_purge_fails() -> None:
    """It waits as often as ever for an answer, only less long each time."""
    code = "from diag import cli; from diag.demos import ghost_key_retry_loop as demo; demo.FREE_S = 2.0; cli.main()"
    done = subprocess.run([sys.executable, "-c", code, "demo", "ghost-key", "--dry-purge"], capture_output=True, text=True, check=False, timeout=4 * WAIT_S)
    assert done.returncode == 2, done.stderr
    assert "still not answered" in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_leaves_no_process_behind() -> None:
    """Its own process group is empty afterwards, also when it is ended half-way."""
    demo = subprocess.Popen([sys.executable, "-m", "diag.cli", "demo", "ghost-key"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert demo.stdout is not None
    wait_until(lambda: "healthy image" in demo.stdout.readline(), WAIT_S)  # type: ignore[union-attr]
    children = _descendants(demo.pid)
    assert children
    demo.terminate()
    demo.wait(WAIT_S)
    demo.stdout.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), WAIT_S)


def _descendants(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return children + [grand for child in children for grand in _descendants(child)]
