"""Ways of breaking what collectors rest on, and what of the rules can still be judged then.

The patient is a service with one worker lost to a ghost key.
"""

import contextlib
import os
import shlex
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import redis

from diag.labs import Lab, Server, damaged_image, start_lab, start_server, wait_until
from tests.live import breakage
from tests.live.breakage import WITH_A_GPU, Around, http, out_of_the_way, program, python_with, serving, without
from tests.live.ghost_lab import GHOST_LAB, ghost_key
from tests.live.run import Said

WAIT_S = 60.0
BY_STACK = {"looping", "same_key"}
BY_KEY = {"ghost_key", "suspect_key", "cut_key", "key_is_healthy", "own_copy"}

Broken = Callable[["World"], contextlib.AbstractContextManager[Around]]


@dataclass
class World:
    """The patient, its cache server, and room for what stands in for broken things."""

    folder: Path
    server: Server
    lab: Lab
    """Its retries are slow: it burns no CPU."""
    stack: contextlib.ExitStack
    pool: ThreadPoolExecutor
    hot: Lab | None = None
    taken: dict[str, "Future[Snapshot]"] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.folder / name


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot said and the manifest it left."""

    said: Said
    manifest: Mapping[str, Any]


@dataclass(frozen=True)
class Way:
    """One way of breaking things: what of the ghost rule is still seen, and which rules are open or ruled out."""

    broken: Broken
    ghost: str = "confirmed"
    missing: frozenset[str] = frozenset()
    """Signals of the ghost rule that could not be looked at."""
    still_open: frozenset[str] = frozenset()
    """Other rules that are inconclusive; the rest is ruled out."""
    likely: frozenset[str] = frozenset()
    """Other rules that find something, because what was done is an incident of its own."""
    needs_root: bool = False
    also: frozenset[str] = frozenset()
    """Collectors that go without because of what another one could not read."""

    @property
    def name(self) -> str:
        return self.broken.__name__

    @property
    def needs_hot_lab(self) -> bool:
        return self.name.startswith(("redis", "nothing_hot"))


def way(*missing: str, **rest: Any) -> Callable[[Callable[[World], Iterator[Around]]], Way]:
    """Make a Way of a generator that breaks something and yields how to start llmdiag."""
    sets = {name: frozenset(rest.pop(name, ())) for name in ("still_open", "likely", "also")}
    return lambda broken: Way(contextlib.contextmanager(broken), missing=frozenset(missing), **sets, **rest)


@contextlib.contextmanager
def ghost_lab(server: Server, log: Path, *options: str) -> Iterator[Lab]:
    """A service with one of two workers lost to a ghost key."""
    with start_lab(GHOST_LAB, "--redis", server.url, "--ghost", "marker", "--workers", "2", *options, log=log) as lab:
        image = damaged_image()
        lab.post_later(image)
        wait_until(lambda: ghost_key(image).encode() in server.key_names(), WAIT_S)
        yield lab


@way()
def nothing(world: World) -> Iterator[Around]:
    yield Around(world.lab.pid)


@way()
def nothing_hot(world: World) -> Iterator[Around]:
    with spinning(world) as around:
        yield around


@way(
    *BY_STACK, *BY_KEY, "log_silent", "backlog", "no_answer", "frozen_counters", ghost="inconclusive",
    still_open={"cpu-spin", "event-loop-blocked", "redis-dependency-stall", "service-silent"}, needs_root=True, also={"metrics", "redis"},
)
def no_right_to_trace(world: World) -> Iterator[Around]:
    yield Around(world.lab.pid, behind=without("sys_ptrace"))


@way(*BY_STACK, *BY_KEY, ghost="inconclusive", needs_root=True)
def py_spy_without_rights(world: World) -> Iterator[Around]:
    yield Around(world.lab.pid, python_with(f'exec {shlex.join(without("sys_ptrace"))} {shlex.quote(breakage.real_py_spy())} "$@"', world.path("denied")))


@way(*BY_STACK, *BY_KEY, ghost="inconclusive")
def py_spy_hangs(world: World) -> Iterator[Around]:
    yield Around(world.lab.pid, python_with('[ "$1" = --version ] && echo py-spy 0.4.1 && exit; exec sleep 600', world.path("hangs")))


@way(*BY_STACK, *BY_KEY, ghost="inconclusive")
def py_spy_talks_nonsense(world: World) -> Iterator[Around]:
    yield Around(world.lab.pid, python_with("echo '<html>not found</html>'", world.path("nonsense")))


@way(*BY_STACK, *BY_KEY, "backlog", "frozen_counters", ghost="inconclusive", still_open={"service-silent"}, likely={"process-ended"})
def patient_killed(world: World) -> Iterator[Around]:
    """The patient is another service like the first one: this one does not survive."""
    with start_lab(GHOST_LAB, "--redis", world.server.url, "--workers", "2", log=world.path("killed.log")) as lab:
        yield Around(lab.pid, during=lambda: end(lab))


@way("frozen_counters")
def metrics_forbidden(world: World) -> Iterator[Around]:
    with serving(http("403 Forbidden", b"no")) as server:
        yield Around(world.lab.pid, args=("--port", str(server.port)))


@way("frozen_counters")
def port_closed(world: World) -> Iterator[Around]:
    with serving(http("200 OK", b"# TYPE up gauge\nup 1\n")) as server:
        yield Around(world.lab.pid, args=("--port", str(server.port)), during=server.stop)


@way("frozen_counters")
def port_silent(world: World) -> Iterator[Around]:
    with serving(None) as server:
        yield Around(world.lab.pid, args=("--port", str(server.port)))


@way("frozen_counters")
def port_talks_html(world: World) -> Iterator[Around]:
    with serving(http("200 OK", b"<html><body>Welcome to nginx!</body></html>")) as server:
        yield Around(world.lab.pid, args=("--port", str(server.port)))


@way("log_silent", needs_root=True)
def log_of_somebody_else(world: World) -> Iterator[Around]:
    os.chown(world.lab.log, 65534, -1)
    world.lab.log.chmod(0o600)
    yield Around(world.lab.pid, behind=without("dac_override", "dac_read_search"))
    os.chown(world.lab.log, os.getuid(), -1)


@way("log_silent")
def log_removed(world: World) -> Iterator[Around]:
    log = world.path("removed.log")
    log.write_text("INFO 11-30 07:00:00 [loggers.py:1] Engine 000: running\n" * 3)
    yield Around(world.lab.pid, args=("--log", str(log)), during=log.unlink)


@way("log_silent")
def log_that_blocks(world: World) -> Iterator[Around]:
    """Opening a named pipe waits for a writer that never comes."""
    os.mkfifo(world.path("pipe"))
    yield Around(world.lab.pid, args=("--log", str(world.path("pipe"))))


@way(*BY_KEY, ghost="likely")
def redis_wants_a_password(world: World) -> Iterator[Around]:
    with another_server(world) as server:
        with redis.Redis(port=server.port) as client:
            client.config_set("requirepass", "sesame")
        with spinning(world) as around:
            yield around


@way(*BY_KEY, ghost="likely")
def redis_killed(world: World) -> Iterator[Around]:
    with another_server(world) as server, spinning(world) as around:
        yield replace(around, during=lambda: os.kill(server.pid, signal.SIGKILL))


@way(*BY_KEY, ghost="likely")
def redis_stopped(world: World) -> Iterator[Around]:
    with another_server(world) as server, spinning(world) as around:
        yield replace(around, during=lambda: os.kill(server.pid, signal.SIGSTOP))


@way(*BY_KEY, ghost="likely")
def redis_talks_nonsense(world: World) -> Iterator[Around]:
    with out_of_the_way(world.server.socket), serving(b"\xff\x00nonsense\r\n", world.server.socket), spinning(world) as around:
        yield around


@way(*BY_KEY, ghost="likely")
def redis_says_ok_to_all(world: World) -> Iterator[Around]:
    """The protocol is right, and every answer is wrong."""
    with out_of_the_way(world.server.socket), serving(b"+OK\r\n", world.server.socket), spinning(world) as around:
        yield around


@way()
def tools_hang(world: World) -> Iterator[Around]:
    for name in ("nvidia-smi", "dmesg"):
        program(world.path("hanging"), name, "exec sleep 600")
    yield Around(world.lab.pid, env={"PATH": f"{world.path('hanging')}:{os.environ['PATH']}"})


@way(needs_root=True)
def tools_talk_nonsense(world: World) -> Iterator[Around]:
    for name in ("nvidia-smi", "dmesg"):
        program(world.path("talking"), name, "exec head -c 20000 /dev/urandom")
    yield Around(world.lab.pid, behind=WITH_A_GPU, env={"PATH": f"{world.path('talking')}:{os.environ['PATH']}"})


@way(needs_root=True)
def nvidia_smi_killed(world: World) -> Iterator[Around]:
    program(world.path("killed"), "nvidia-smi", "kill -9 $$")
    yield Around(world.lab.pid, behind=WITH_A_GPU, env={"PATH": f"{world.path('killed')}:{os.environ['PATH']}"})


@way(needs_root=True)
def nvidia_smi_not_executable(world: World) -> Iterator[Around]:
    program(world.path("locked"), "nvidia-smi", "true", mode=0o644)
    yield Around(world.lab.pid, behind=WITH_A_GPU, env={"PATH": f"{os.environ['PATH']}:{world.path('locked')}"})


@way(ghost="not matched")
def strange_names(world: World) -> Iterator[Around]:
    with breakage.strange_patient(world.folder) as pid:
        yield Around(pid)


def end(lab: Lab) -> None:
    """Killed, and reaped: nothing of it is left in /proc."""
    lab.process.kill()
    lab.process.wait()


def hot_lab(world: World) -> Lab:
    """Without its cache server a slow retry loop cannot be told from other polling: some ways need one that spins."""
    world.hot = world.hot or world.stack.enter_context(ghost_lab(world.server, world.path("hot.log")))
    return world.hot


@contextlib.contextmanager
def spinning(world: World) -> Iterator[Around]:
    """The hot lab, which has a core for as long as this lasts."""
    pid = hot_lab(world).pid
    os.kill(pid, signal.SIGCONT)
    try:
        yield Around(pid)
    finally:
        os.kill(pid, signal.SIGSTOP)


@contextlib.contextmanager
def another_server(world: World) -> Iterator[Server]:
    """Another cache server where llmdiag will look for the patient's; the patient keeps its own."""
    with (
        tempfile.TemporaryDirectory() as folder, start_server(Path(folder)) as server,
        out_of_the_way(world.server.socket),
    ):
        server.socket.rename(world.server.socket)
        try:
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGCONT)
