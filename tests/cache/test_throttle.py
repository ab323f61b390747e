"""A purge is held back: by its rate, by slow pings, by a fork, by a replica that is behind; and it says so."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.cache.purging import planning
from diag.cache.purging.purge import Options, PurgeResult, purge
from diag.cache.purging.throttle import Limits, Rate, Throttle, rate_of
from diag.cache.scanning.server import connect, scan
from diag.errors import BadInput
from tests.cache.world import SOUND, fill

CALM = Limits(ping_ms=1e9)


@pytest.mark.parametrize(
    ("text", "keys_s", "bytes_s"), [("2000", 2000, 100e6), ("2000,20MB", 2000, 20e6), (",1.5gb", 5000, 1.5e9), ("0.5,512", 0.5, 512)]
)
def test_rates(text: str, keys_s: float, bytes_s: float) -> None:
    assert rate_of(text) == Rate(keys_s, bytes_s)


@pytest.mark.parametrize("text", ["fast", "0", "-1", "5,0", "nan", "inf", "5,5TB", "5,,5"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match="--rate"):
        rate_of(text)


@pytest.mark.parametrize(("rate", "batches", "keys", "size"), [(Rate(1000, 1e12), 5, 50, 0), (Rate(1e9, 1000), 5, 1, 50)])
def test_it_is_never_faster_than_its_rate(server: Any, rate: Rate, batches: int, keys: int, size: int) -> None:
    """The first goes at once; each further one waits for the time of the one before it."""
    with Throttle([connect(server.url)], rate, CALM) as throttle:
        started = time.monotonic()
        for _ in range(batches):
            assert not throttle.wait(keys, size)
        took = time.monotonic() - started
    assert took >= (batches - 1) * 0.05, took
    assert throttle.notes == ()


def test_slow_pings_halve_the_rate_and_are_told(server: Any, tmp_path: Path) -> None:
    done = _purged(server, tmp_path, Limits(ping_ms=-1000.0))  # any ping is slower than that
    assert done.deleted == 12 and any("held back" in note and "pings took over" in note for note in done.notes), done


def test_a_slow_fork_halves_the_rate_and_is_told(server: Any, tmp_path: Path) -> None:
    server.client().bgsave()
    _until(lambda: server.client().info("persistence")["rdb_bgsave_in_progress"] == 0)
    done = _purged(server, tmp_path, Limits(ping_ms=1e9, fork_usec=0))
    assert done.deleted == 12 and any("its last fork took" in note for note in done.notes), done


def test_nothing_goes_while_a_fork_saves(start_server: Callable[..., Any], tmp_path: Path) -> None:
    slow = start_server("--rdb-key-save-delay", "10000000")
    client = slow.client()
    names = fill(client, 12)
    seen: list[int] = []
    client.bgsave()
    over = threading.Event()

    def watch() -> None:
        with slow.client() as other:
            _until((tmp_path / "b.jsonl").exists)  # now only the throttle asks
            before = _calls(other, "info")
            for _ in range(5):
                _until(lambda: _calls(other, "info") > before + len(seen))
                seen.append(other.exists(*names))
            other.config_set("rdb-key-save-delay", 0)
            os.kill(_child(slow.process.pid), signal.SIGKILL)
            over.set()

    thread = threading.Thread(target=watch)
    thread.start()
    done = _purged(slow, tmp_path, CALM, filled=True)
    thread.join()
    assert over.is_set() and seen == [12] * 5, seen
    assert done.deleted == 12 and any("it was saving" in note for note in done.notes), done
    slow.process.kill()


def test_patience_ends(start_server: Callable[..., Any], tmp_path: Path) -> None:
    slow = start_server("--rdb-key-save-delay", "10000000")
    fill(slow.client(), 12)
    slow.client().bgsave()
    done = _purged(slow, tmp_path, Limits(ping_ms=1e9, patience_s=0.3), filled=True)
    assert done.deleted == 12 and any("it was saving" in note for note in done.notes), done
    os.kill(_child(slow.process.pid), signal.SIGKILL)
    slow.process.kill()


def test_nothing_goes_while_a_replica_is_behind(server: Any, start_server: Callable[..., Any], tmp_path: Path) -> None:
    client = server.client()
    names = fill(client, 12)
    client.config_set("repl-diskless-sync-delay", 0)
    replica = start_server("--replicaof", "127.0.0.1", str(server.port), binary=server.binary)
    _until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
    replica.process.send_signal(signal.SIGSTOP)
    client.set("much", b"x" * 100_000)
    seen: list[int] = []

    def watch() -> None:
        with server.client() as other:
            before = _calls(other, "info")
            _until(lambda: _calls(other, "info") > before + 12)
            seen.append(other.exists(*names))
        replica.process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=watch)
    thread.start()
    done = _purged(server, tmp_path, Limits(ping_ms=1e9, lag_bytes=50_000), filled=True)
    thread.join()
    replica.process.kill()
    assert seen == [12] and done.deleted == 12 and any("a replica was behind" in note for note in done.notes), (seen, done)


def test_without_info_it_goes_on_and_says_so(server: Any, tmp_path: Path) -> None:
    client = server.client()
    fill(client, 12)
    found = scan(client, server.target)
    what = planning.plan(found.ghosts, target=server.target)
    client.execute_command("ACL", "SETUSER", "blind", "on", ">pw", "~*", "+@all", "-info")
    try:
        done = purge(connect(f"redis://blind:pw@127.0.0.1:{server.port}"), what, tmp_path / "b.jsonl", options=Options(limits=CALM))
    finally:
        client.execute_command("ACL", "DELUSER", "blind")
    assert done.deleted == 12 and any("not watched" in note for note in done.notes), done


def _purged(server: Any, folder: Path, limits: Limits, *, filled: bool = False) -> PurgeResult:
    client = server.client()
    if not filled:
        fill(client, 12)
    found = scan(client, server.target)
    what = planning.plan(found.ghosts, target=server.target)
    assert len(what.keys) == 12
    done = purge(connect(server.url), what, folder / "b.jsonl", options=Options(limits=limits, rate=Rate(400, 1e9)))
    assert client.exists(*(row.name for row in what.keys)) == 0 and client.dbsize() >= SOUND
    return done


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came"


def _calls(client: Any, command: str) -> int:
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def _child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_two_signals_at_once_in_the_middle_of_a_wait_do_not_hang() -> None:
    """Sent microseconds apart, as a wrapper does that signals a process and then its group."""
    script = (
        "import sys\nfrom diag.cache.interrupts import wished\n"
        "for _ in range(150):\n"
        "    try:\n"
        "        with wished() as stop:\n"
        "            print(1, flush=True)\n"
        "            while not stop.wait(0.0005): pass\n"
        "            stop.wait(0.0005)\n"
        "    except KeyboardInterrupt: pass\n"
        "    while True:\n"
        "        try: sys.stdin.readline(); break\n"
        "        except KeyboardInterrupt: pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            for _ in range(150):
                assert process.stdout.readline() == "1\n", "it hangs, or ended"
                os.kill(process.pid, signal.SIGINT)
                os.kill(process.pid, signal.SIGINT)
                _until(lambda: not _pending(process.pid))
                process.stdin.write("\n")
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def _pending(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return any(int(status.partition(f"{name}:")[2].split()[0], 16) for name in ("SigPnd", "ShdPnd"))
