"""GET /metrics of several backends at once, again and again: nothing else is ever sent from here.

One deadline covers a whole read, whatever the server does: hang, trickle, send without end, name lookups included. A
redirect is followed once, and only to another path of the same server.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin, urlsplit

import msgspec

from diag.cache.interrupts import Stop
from diag.errors import BadInput
from diag.health.reads import Outcome, Read, Record, read_of
from diag.repro.http_post import REDIRECTS, Place, Reply, Wire, place_of

METRICS, MODELS = "/metrics", "/v1/models"
MAX_BODY_BYTES = 16 << 20
"""A server of hundreds of LoRA adapters says less than 2 MiB."""
GRACE_S = 0.5
"""For a thread to notice its deadline; who has not by then is looking up a name."""
UNIX = ("unix://", "unix:")
ENCODINGS = frozenset({"", "identity", "gzip", "x-gzip"})
"""What a body may be packed with: of gzip the parser knows how to read no more than it may."""


@dataclass(frozen=True)
class Backend:
    """Where the counters of one backend are. A proxy has none of its own that could be compared: it is asked which models it lists."""

    place: Place
    path: str = METRICS
    token: str | None = field(default=None, repr=False)
    proxy: bool = False

    @property
    def url(self) -> str:
        """As a person would name it; the key of its reads."""
        return self.place.shown + self.path

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True)
class Look:
    """One read as it came: what is kept of it by --record, and what is judged."""

    record: Record
    body: bytes | None
    problem: str = ""
    """What the system or this module has to say beyond the outcome."""

    @property
    def read(self) -> Read:
        found = read_of(self.record, self.body)
        return replace(found, problem=self.problem, samples=()) if self.problem else found


def backend_of(text: str, token: str | None = None, *, proxy: bool = False) -> Backend:
    """`http://host:8000`, `host:8000`, `http://host/prefix/metrics`, `unix:/run/engine.sock` -> Backend. Raises BadInput."""
    path = MODELS if proxy else METRICS
    for scheme in UNIX:
        if text.startswith(scheme):
            socket_path = text.removeprefix(scheme)
            if not socket_path.startswith("/") or "\0" in socket_path or len(socket_path.encode(errors="replace")) > 107:
                raise BadInput(f"{text}: not the path of a unix socket", hint="for example unix:/run/vllm/api.sock")
            return Backend(Place(False, "localhost", 80, unix=socket_path), path, token, proxy)
    place = place_of(text)
    if not proxy and place.prefix.endswith("/metrics"):
        return Backend(replace(place, prefix=place.prefix.removesuffix(METRICS)), METRICS, token)
    return Backend(place, path, token, proxy)


def rounds(wire: Wire, backends: Sequence[Backend], *, interval_s: float, timeout_s: float, stop: Stop) -> Iterator[list[Look]]:
    """A read of every backend, all at once, every `interval_s`; the next one is due when the generator is resumed. Ends when `stop` is set.

    Each read ends within `timeout_s`. The looks are in the order of the backends.
    """
    due = time.monotonic()
    while not stop.wait(max(0.0, due - time.monotonic())):
        due = max(due, time.monotonic()) + interval_s
        yield _round(wire, backends, timeout_s)


def look(wire: Wire, backend: Backend, timeout_s: float) -> Look:
    """One GET of its counters within `timeout_s`. Raises nothing."""
    ts, started = time.time(), time.monotonic()
    reply = wire.exchange("GET", backend.place, backend.path, backend.headers, None, timeout_s)
    away = ""
    if reply.outcome == "answer" and reply.status in REDIRECTS:
        reply, away = _followed(wire, backend, reply, started + timeout_s)
    record = Record(
        url=backend.url, outcome=_outcome(reply), status=reply.status, ts=round(ts, 3), monotonic_s=round(started, 3),
        seconds=round(time.monotonic() - started, 4),
    )
    if reply.outcome != "answer":
        return Look(record, None, reply.detail or reply.outcome)
    packed = reply.headers.get("content-encoding", "").strip().lower()
    if packed not in ENCODINGS:
        return Look(msgspec.structs.replace(record, outcome="garbled"), None, f"packed as {packed!r}, though nothing of the kind was asked for")
    return Look(record, reply.body, away)


def _followed(wire: Wire, backend: Backend, reply: Reply, until: float) -> tuple[Reply, str]:
    """The answer at another path of the same server, or what is wrong with where it points."""
    location = reply.headers.get("location", "")
    try:
        aim = urlsplit(urljoin(f"{'https' if backend.place.tls else 'http'}://{backend.place.authority}{backend.place.prefix}{backend.path}", location))
        port = aim.port
    except ValueError:
        return reply, "redirects to what is no URL"
    tls = aim.scheme == "https"
    there = Place(tls, aim.hostname or "", port if port is not None else 443 if tls else 80)
    here = replace(backend.place, prefix="", unix="")
    if aim.scheme not in ("http", "https") or not there.is_same_server(here) or not _is_path(aim.path):
        return reply, f"redirects to {there.shown if there.host else 'somewhere'}, another place, and is not followed: give that address, if it is the right one"
    left = until - time.monotonic()
    second = wire.exchange("GET", replace(backend.place, prefix=""), aim.path, backend.headers, None, left)
    if second.outcome == "answer" and second.status in REDIRECTS:
        return second, "redirects from one redirect to the next"
    return second, ""


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isascii() and text.isprintable() and " " not in text


def _outcome(reply: Reply) -> Outcome:
    """Trouble with a certificate, or an answer without end, is one that cannot be read."""
    return "garbled" if reply.outcome == "tls" else "timeout" if reply.outcome == "stopped" else reply.outcome


def _round(wire: Wire, backends: Sequence[Backend], timeout_s: float) -> list[Look]:
    found: dict[int, Look] = {}
    ts, started = time.time(), time.monotonic()

    def work(number: int) -> None:
        found[number] = look(wire, backends[number], timeout_s)

    threads = [threading.Thread(target=work, args=(number,), name=f"read-{number}", daemon=True) for number in range(len(backends))]
    for thread in threads:
        thread.start()
    until = started + timeout_s + GRACE_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [found.get(number) or _unfinished(backend, ts, started) for number, backend in enumerate(backends)]


def _unfinished(backend: Backend, ts: float, started: float) -> Look:
    record = Record(url=backend.url, outcome="timeout", ts=round(ts, 3), monotonic_s=round(started, 3), seconds=round(time.monotonic() - started, 4))
    return Look(record, None, "no answer in time; the name of its host is still being looked up")
