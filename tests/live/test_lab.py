"""The first lab does what the incident did: a damaged image costs a worker until its Redis key is deleted."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from diag.labs import Lab, Server, damaged_image, start_lab, start_server, wait_until
from tests.live.ghost_lab import GHOST_LAB, ghost_key

pytestmark = pytest.mark.live

GHOSTS = ("marker", "constant", "none", "null-marker", "truncated", "stale-version")
DEADLINE_S = 60.0
HEALTHY = b"a healthy image"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with start_server(tmp_path) as running:
        yield running


@contextlib.contextmanager
def lab_at(url: str, tmp_path: Path, *args: str) -> Iterator[Lab]:
    with start_lab(GHOST_LAB, "--redis", url, *args, log=tmp_path / "lab.log") as lab:
        yield lab


@dataclass(frozen=True)
class Activity:
    """What one thread did in a window: share of the time it ran or wanted to run, and switches per second."""

    runnable: float
    switches_per_s: float

    @property
    def hot(self) -> bool:
        return self.runnable >= 0.6 or self.switches_per_s >= 50


def read_threads(pid: int) -> dict[str, tuple[int, int]]:
    """Nanoseconds on or waiting for a CPU, and context switches, of each thread."""
    threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        run_ns, wait_ns, _ = (task / "schedstat").read_text().split()
        switches = re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())
        threads[task.name] = int(run_ns) + int(wait_ns), sum(map(int, switches))
    return threads


def activities(pid: int, window_s: float = 0.5) -> dict[str, Activity]:
    before, start = read_threads(pid), time.monotonic()
    time.sleep(window_s)  # the window itself; nothing is waited for
    after, seconds = read_threads(pid), time.monotonic() - start
    return {
        tid: Activity((ns - before[tid][0]) / 1e9 / seconds, (switches - before[tid][1]) / seconds)
        for tid, (ns, switches) in after.items()
        if tid in before
    }


def hot_threads(pid: int) -> set[str]:
    return {tid for tid, activity in activities(pid).items() if activity.hot}


def reads(server: Server) -> int:
    """GET commands that the server has answered."""
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"])


def wait_for_loop(server: Server, turns: int = 100) -> None:
    """Until Redis was read that often more: a worker that loops, if nothing else asks."""
    seen = reads(server)
    wait_until(lambda: reads(server) >= seen + turns, DEADLINE_S)


def test_healthy_requests_are_answered(server: Server, tmp_path: Path) -> None:
    with lab_at(server.url, tmp_path) as lab, server.client() as client:
        keys = list(client.scan_iter(match="clip-vit-b-32:image:*", count=1000))
        assert len(keys) >= 200
        assert all(2048 < client.strlen(key) < 8192 and client.ttl(key) > 0 for key in keys)

        first, second, other = lab.post(HEALTHY), lab.post(HEALTHY), lab.post(b"another image")
        assert (first.status, second.status, other.status) == (200, 200, 200)
        assert first.body == second.body != other.body
        assert client.exists(ghost_key(HEALTHY))
        assert lab.get("/health").status == 200
        assert lab.metrics() == {
            "lab_requests_total": 3,
            "vllm:num_requests_running": 0,
            "vllm:num_requests_waiting": 0,
            "vllm:request_success_total": 3,
        }
        assert hot_threads(lab.pid) == set()


@pytest.mark.parametrize("backoff_ms", [0, 10])
@pytest.mark.parametrize("ghost", GHOSTS)
def test_ghost_costs_one_worker_until_its_key_is_deleted(
    server: Server,
    tmp_path: Path,
    ghost: str,
    backoff_ms: int,
) -> None:
    options = ("--ghost", ghost, "--backoff-ms", str(backoff_ms))
    with lab_at(server.url, tmp_path, *options) as lab, server.client() as client:
        image = damaged_image()
        key = ghost_key(image, ghost)
        hung = lab.post_later(image)
        wait_until(lambda: client.exists(key), DEADLINE_S)
        wait_for_loop(server)

        hot = wait_until(lambda: hot_threads(lab.pid), DEADLINE_S)
        assert len(hot) == 1
        lines = lab.log.read_text().splitlines()
        wait_for_loop(server)
        assert lab.log.read_text().splitlines() == lines, "the loop is silent"
        assert (client.ttl(key) == -1) == (ghost == "null-marker")

        for number in range(6):
            assert lab.post(b"healthy %d" % number).status == 200
        assert lab.get("/health").status == 200
        assert lab.metrics()["vllm:num_requests_running"] == 1
        assert not hung.done()

        assert client.delete(key) == 1
        assert hung.result(DEADLINE_S).status == 200
        assert client.strlen(key) > 2048, "the key holds an encoding now"
        assert lab.post(image).status == 200
        wait_until(lambda: not hot_threads(lab.pid), DEADLINE_S)


def test_tcp_redis_hangs_and_heals_as_well(server: Server, tmp_path: Path) -> None:
    with lab_at(server.tcp_url, tmp_path) as lab, server.client() as client:
        image = damaged_image()
        hung = lab.post_later(image)
        wait_for_loop(server)
        assert not hung.done()
        assert client.delete(ghost_key(image)) == 1
        assert hung.result(DEADLINE_S).status == 200


def test_all_workers_lost_is_a_dead_service(server: Server, tmp_path: Path) -> None:
    with lab_at(server.url, tmp_path) as lab, server.client() as client:
        images = [damaged_image() for _ in range(4)]
        hung = [lab.post_later(image) for image in images]
        wait_until(lambda: lab.metrics()["vllm:num_requests_running"] == 4, DEADLINE_S)
        hung.append(lab.post_later(HEALTHY))
        wait_until(lambda: lab.metrics()["vllm:num_requests_waiting"] == 1, DEADLINE_S)

        assert lab.get("/health").status == 503
        before = lab.metrics()
        wait_for_loop(server)
        assert lab.metrics() == before
        assert not any(answer.done() for answer in hung)

        assert client.delete(*(ghost_key(image) for image in images)) == 4
        assert [answer.result(DEADLINE_S).status for answer in hung] == [200] * 5
        assert lab.get("/health").status == 200


def test_l1_that_holds_the_ghost_outlives_the_deleted_key(server: Server, tmp_path: Path) -> None:
    options = ("--l1-holds-ghost", "--l1-ttl", "3600")
    with lab_at(server.url, tmp_path, *options) as lab, server.client() as client:
        image = damaged_image()
        hung = lab.post_later(image)
        wait_until(lambda: reads(server) == 2, DEADLINE_S)  # the miss, and the read that fills L1
        assert client.delete(ghost_key(image)) == 1
        (looping,) = wait_until(lambda: hot_threads(lab.pid), DEADLINE_S)
        busy_ns = read_threads(lab.pid)[looping][0]
        wait_until(lambda: read_threads(lab.pid)[looping][0] > busy_ns + 500_000_000, DEADLINE_S)
        assert reads(server) == 2, "Redis is not asked any more"
        assert not hung.done()


def test_l1_frees_the_worker_when_it_expires(server: Server, tmp_path: Path) -> None:
    with lab_at(server.url, tmp_path, "--l1-holds-ghost", "--l1-ttl", "1") as lab, server.client() as client:
        image = damaged_image()
        hung = lab.post_later(image)
        wait_until(lambda: client.exists(ghost_key(image)), DEADLINE_S)
        wait_for_loop(server, turns=2)  # L1 expired twice and was filled from Redis again
        assert not hung.done()
        client.delete(ghost_key(image))
        assert hung.result(DEADLINE_S).status == 200


def test_no_ghost_answers_422(server: Server, tmp_path: Path) -> None:
    with lab_at(server.url, tmp_path, "--no-ghost") as lab, server.client() as client:
        for _ in range(6):
            image = damaged_image()
            assert lab.post(image).status == 422
            assert not client.exists(ghost_key(image))
        assert lab.post(HEALTHY).status == 200
        assert hot_threads(lab.pid) == set()


def test_busy_lab_answers_its_own_load_beside_a_lost_worker(server: Server, tmp_path: Path) -> None:
    with lab_at(server.url, tmp_path, "--busy") as lab, server.client() as client:
        keys = client.dbsize()
        wait_until(lambda: lab.metrics()["vllm:request_success_total"] > 200, DEADLINE_S)
        wait_until(lambda: client.dbsize() > keys, DEADLINE_S)

        image = damaged_image()
        hung = lab.post_later(image)
        wait_until(lambda: client.exists(ghost_key(image)), DEADLINE_S)
        answered = lab.metrics()["vllm:request_success_total"]
        wait_until(lambda: lab.metrics()["vllm:request_success_total"] > answered + 200, DEADLINE_S)
        assert not hung.done()
        client.delete(ghost_key(image))
        assert hung.result(DEADLINE_S).status == 200


def test_no_process_is_left(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        with lab_at(server.url, tmp_path) as lab:
            hung = lab.post_later(damaged_image())
            wait_for_loop(server)
        assert isinstance(hung.exception(DEADLINE_S), OSError)
        with pytest.raises(ProcessLookupError):
            os.killpg(lab.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)
    assert not server.socket.parent.exists()
    assert "4 workers" in lab.log.read_text()


def test_sigterm_ends_a_hung_lab(server: Server, tmp_path: Path) -> None:
    with lab_at(server.url, tmp_path) as lab:
        lab.post_later(damaged_image())
        wait_for_loop(server)
        lab.process.terminate()
        assert lab.process.wait(DEADLINE_S) == 0
