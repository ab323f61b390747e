"""`llmdiag snapshot --watch`: wait until health proves a stall. Reads /metrics and /proc, sends nothing else, restarts nothing."""

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from diag import terminal
from diag.errors import BadInput, CollectorError, LlmdiagError, Vanished

if TYPE_CHECKING:
    from diag.cache.interrupts import Stop
    from diag.health.checking import Settings
    from diag.health.polling import Backend
    from diag.services.found import Found

SCHEME_S = 2.0
"""Patience with each of the two reads that tell whether the port wants TLS."""
STALLED = ("stalled", "admission-stalled")
BLIND = ("no-metrics", "unreadable", "unreachable", "mixed-backends")
UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


def seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """`90s`, `30m`, `2h`, `1d`, or seconds -> seconds. Raises click.BadParameter."""
    if text is None:
        return None
    found = DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise click.BadParameter(f"{text!r} is no duration: give 90s, 30m, 2h or 1d", context, parameter)
    return float(found[1]) * UNITS_S[found[2]]


@dataclass(frozen=True)
class Stall:
    """What health proved, and the service as it is now."""

    service: "Found"
    says: str


@dataclass(frozen=True)
class Nothing:
    """The time is over and nothing was proved; `looked`: metrics that tell something were read at least once."""

    looked: bool


@dataclass
class _Seen:
    """Whether any read of the metrics told something, over all lives of the service."""

    looked: bool = False


@dataclass(frozen=True)
class _Until:
    """A wish to stop that comes by itself when the time is over."""

    wish: "Stop"
    began: float
    seconds: float

    @property
    def share(self) -> float:
        """Of the time that is over; 0 while it has no end."""
        return min(1.0, (time.monotonic() - self.began) / self.seconds)

    def is_set(self) -> bool:
        return self.wish.is_set() or self.share >= 1.0

    def wait(self, timeout: float) -> bool:
        self.wish.wait(min(timeout, max(0.0, self.began + self.seconds - time.monotonic())))
        return self.is_set()


def options(command: Any) -> Any:
    """--watch and what belongs to it."""
    for decorate in (
        click.option("--watch-interval", "watch_interval_s", callback=seconds, default="10s", show_default=True, metavar="TIME", help="Between two reads of --watch."),
        click.option("--watch-floor", "watch_floor_s", callback=seconds, default="300s", show_default=True, metavar="TIME", help="How long a busy engine may show no progress, at least (--floor of health)."),
        click.option("--watch-for", "watch_for_s", callback=seconds, metavar="TIME", help="Stop waiting after that time: 30m, 2h, 1d (default: never)."),
        click.option("--watch", is_flag=True, help="Wait until health proves a stall, then take one snapshot."),
    ):
        command = decorate(command)
    return command


def wait_for_stall(
    service: "Found", again: "Callable[[], Found] | None", token: str | None, asked: Mapping[str, Any]
) -> Stall | Nothing:
    """`again` finds the service after a restart; None = nothing does (it was named by pid).

    Raises KeyboardInterrupt (Ctrl-C), Vanished (it ended and did not come back).
    """
    from diag.cache import interrupts
    from diag.health.budget import Budget
    from diag.health.checking import Settings

    settings = Settings(interval_s=asked["watch_interval_s"], probe=False, budget=Budget(floor_s=asked["watch_floor_s"]))
    with interrupts.wished() as wish, terminal.progress("armed") as told:
        seen = _Seen()
        stop = _Until(wish, time.monotonic(), asked["watch_for_s"] or float("inf"))
        pid, backend = _backend(service, asked["ports"], token)
        _announce(service, settings, asked["watch_for_s"])
        while True:
            left = asked["logs"] or _logs(service)
            says = _watched(pid, backend, settings, stop, told, seen)
            if wish.is_set():
                raise KeyboardInterrupt
            if says is not None:
                return Stall(service, says)
            if stop.is_set():
                return Nothing(seen.looked)
            service, pid, backend = _successor(service, left, again, asked["ports"], token, settings, stop)


def _announce(service: "Found", settings: "Settings", for_s: float | None) -> None:
    limit = "until Ctrl-C" if for_s is None else f"for {for_s:g} s at most"
    terminal.note(terminal.printable(
        f"armed: {service.says}; /metrics is read every {settings.interval_s:g} s, {limit}; one snapshot is taken when health proves a stall, and nothing is restarted"
    ))


def _watched(pid: int, backend: "Backend", settings: "Settings", stop: _Until, told: Callable[[str, float], None], seen: _Seen) -> str | None:
    """What was proved; None when it was stopped, or the service ended."""
    from diag.health.checking import Checker
    from diag.health.listening import local_port
    from diag.health.polling import MAX_BODY_BYTES
    from diag.health.process_evidence import Watch
    from diag.report import health as report
    from diag.repro.http_post import Wire

    processes = Watch(pid, port=local_port(backend.place.host, backend.place.port))
    before = ""
    try:
        checker = Checker(Wire(verify=False, max_body_bytes=MAX_BODY_BYTES), [backend], settings, stop, watch=processes)
        for (checked,) in checker.watching():
            line = report.first_line(checked)
            told(terminal.printable(line), stop.share)
            seen.looked |= checked.verdict.state not in BLIND
            if checked.verdict.state != before:
                terminal.note(f"{report.clock()} {terminal.printable(line)}")
            if checked.verdict.state in STALLED:
                return line
            before = checked.verdict.state
            if processes.evidence().gone:
                return None
    finally:
        processes.close()
    return None


def _logs(service: "Found") -> list[str]:
    """Files that tell how it ended, should it end: no snapshot can find them then."""
    from diag import procfs
    from diag.instruments.log_places import written

    with contextlib.suppress(CollectorError, OSError):
        return written([pid for root in service.pids for pid in procfs.tree(root)])
    return []


def _successor(
    before: "Found", left: Sequence[str], again: "Callable[[], Found] | None", ports: Sequence[int], token: str | None, settings: "Settings", stop: _Until
) -> "tuple[Found, int, Backend]":
    """The service after a restart, once it listens; `left` are the logs of what ended. Raises Vanished when it was named by pid, or does not come back in time."""
    from diag.report import health as report

    look = f"llmdiag analyze {shlex.join(left)}" if left else "llmdiag analyze its logs and the journal"
    ended = Vanished(f"{before.named} has ended: there is nothing left to take a snapshot of", hint=f"{look}; --port, --name, --unit, --container go on after a restart")
    if again is None:
        raise ended
    terminal.note(terminal.printable(f"{report.clock()} {before.named} has ended, why: {look}; waiting for its successor"))
    while not stop.wait(settings.interval_s):
        with contextlib.suppress(LlmdiagError):
            found = again()
            return found, *_backend(found, ports, token)
    if stop.wish.is_set():
        raise KeyboardInterrupt
    raise ended


def _backend(service: "Found", ports: Sequence[int], token: str | None) -> "tuple[int, Backend]":
    """Where its /metrics are, and the process that has them. Raises BadInput."""
    from diag import procfs
    from diag.health.listening import held_by
    from diag.health.polling import backend_of, look
    from diag.instruments import netns
    from diag.instruments.http_get import WILDCARDS, authority
    from diag.repro.http_post import Wire

    roots = list(dict.fromkeys(map(procfs.service_root, service.pids)))
    places: dict[int, tuple[int, str]] = {}
    for pid in roots:
        with contextlib.suppress(CollectorError, OSError):  # whose descriptors may not be seen
            places |= {port: (pid, host) for host, port in held_by(pid) if not ports or port in ports}
    if not places:
        places = {port: (roots[0], "127.0.0.1") for port in ports}
    who = f"pid {', '.join(map(str, roots))}"
    if len(places) != 1:
        what = f"listens on {', '.join(map(str, places))}" if places else "listens on no port that can be seen"
        raise BadInput(f"{who} {what}: where are its /metrics?", hint=f"llmdiag snapshot {' '.join(map(str, roots))} --watch --port PORT")
    ((port, (pid, host)),) = places.items()
    if not netns.is_ours(pid):
        raise BadInput(f"pid {pid} has a network of its own (container): its /metrics cannot be read from here", hint=f"nsenter -t {pid} -n llmdiag snapshot {pid} --watch")
    place = authority(WILDCARDS.get(host, (host,))[0], port)
    backends = [backend_of(f"{scheme}://{place}", token) for scheme in ("http", "https")]
    wire = Wire(verify=False)
    return pid, next((found for found in backends if look(wire, found, SCHEME_S).record.outcome == "answer"), backends[0])

