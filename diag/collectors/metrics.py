"""Does the service answer, and what do its own counters say: GET /metrics and /health, before and after the window.

SGLang is not asked for /health, which has the engine generate. A read that got no answer is a row of `probes` (timeout,
refused, reset, garbled), not a gap. Ports are given or those the tree listens on; each is asked at the address it
listens on, in its own network, with 2 s of patience in all.
`probes-0.jsonl`, and `8000-metrics-0.txt` as the service wrote it, below two lines of ours:

    {"artefact":"probes","read":0,"ts":1796007298.3}
    {"read":0,"ts":1796007298.3,"target":"127.0.0.1:8000","url":"http://127.0.0.1:8000/health","outcome":"timeout","seconds":2.0}

    # llmdiag read=0 ts=1796007298.31 status=200 seconds=0.012
    # llmdiag url=http://127.0.0.1:8000/metrics
    # TYPE vllm:num_requests_running gauge
    vllm:num_requests_running{engine="0",model_name="tiny"} 12.0

Saved answers of /metrics are read too, plain or gzip: `metrics1.txt` and `metrics2.txt` are two reads of one target.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from diag import procfs
from diag.bundle import Door
from diag.errors import CollectorError, Garbled
from diag.instruments import http_get, netns
from diag.live import Collecting, Patient, until_window_end
from diag.model import Artefact, Row
from diag.parsers import metrics_files, prometheus
from diag.parsers.metrics_files import Probe
from diag.parsers.sockets_rows import REDIS_LIKE
from diag.tables import Table

NAME = "metrics"
FEEDS = ("metrics", "probes")
NEEDS = ("sockets", "processes")
TABLES: tuple[Table, ...] = ()
BUDGET_S = 5.0
BUDGET_BYTES = 40 << 20
HINT = "llmdiag snapshot {pid}"
COLUMN_HINTS = {"probes.protocol": "ss -lntp"}

PATIENCE_S = 2.0
MAX_PORTS = 4
METRICS, HEALTH = "/metrics", "/health"
GENERATES_ON_HEALTH = re.compile(r"\bsglang\b", re.IGNORECASE)
"""Servers whose /health has the engine generate a token: that is work for the patient, and a wedged one keeps it."""
OTHER_PORT = "if the engine's counters are elsewhere, name it with --port"
NEVER_HTTP = frozenset({"engine_core", "scheduler", "detokenizer", "cache_server"})
"""Roles whose ports speak ZeroMQ, NCCL, torch or Redis: a stray GET there helps nobody and may be logged as an attack."""


@dataclass(frozen=True)
class _Place:
    """Where to ask: an address in the network of `pid`."""

    host: str
    port: int
    pid: int
    given: bool
    """Named by the person, so it is reported even when it does not speak HTTP."""
    tls: bool | None = None


@dataclass
class _Reply:
    """One probe: what came back, or why it could not be sent."""

    place: _Place
    path: str
    ts: float
    answer: http_get.Answer | None = None
    problem: str = ""


@dataclass
class _Round:
    """One read of all places, each probe in a thread that ends within PATIENCE_S."""

    read: int
    threads: list[threading.Thread] = field(default_factory=list)
    replies: list[_Reply] = field(default_factory=list)
    ended: bool = False


def collect(patient: Patient, door: Door) -> Collecting:
    """Probes run in threads during the window, and again right after it."""
    places, paths = _places(patient, door), _paths(patient)
    first = _start(0, places, paths, _bearer(patient, door))
    second: _Round | None = None
    try:
        yield from until_window_end()
        _end(first, door)
        second = _start(1, _again(places, first), paths, _bearer(patient, door))
        _end(second, door)
    finally:
        for unfinished in (first, second):
            if unfinished is not None and not unfinished.ended:
                _end(unfinished, door)


def would_read(patient: Patient, door: Door) -> list[str]:
    """The addresses that would be asked; with TLS where the port turns out to want it."""
    places, paths = _places(patient, door), _paths(patient)
    asked = [http_get.authority(http_get.WILDCARDS.get(place.host, (place.host,))[0], place.port) for place in places]
    return [f"GET http://{address}{path}" for address in asked for path in paths]


def hint(seen: Callable[[str], Sequence[Mapping[str, object]]]) -> str:
    """Where the ports found did not answer, another one has to be named."""
    tried = any(row.get("collector") == NAME and row.get("status") in ("partial", "failed") for row in seen("collected"))
    return f"{HINT} --port PORT" if tried else HINT


def recognise(name: str, head: bytes) -> bool:
    """A saved answer of /metrics, plain or gzip, or an artefact of this collector."""
    return head.startswith((b'{"artefact":"probes"', b"# llmdiag read=")) or prometheus.looks_like(head)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Artefacts -> rows of `probes` and `metrics`. A bad line costs that line, and is said."""
    for artefact in artefacts:
        if artefact.name.endswith(".jsonl"):
            yield from (("probes", row) for row in metrics_files.probes(artefact))
    texts = [item for item in artefacts if not item.name.endswith(".jsonl")]
    for artefact, known in metrics_files.reads(texts):
        empty = True
        try:
            for row in prometheus.rows(artefact, known):
                empty = False
                yield "metrics", row
        except Garbled as error:
            yield "collected", {"table_name": "metrics", "status": "partial", "reason": error.message}
        else:
            if empty:
                yield "collected", _nothing_in(artefact)


def _nothing_in(artefact: Artefact) -> dict[str, object]:
    """An answer without a single sample is one; a file without a single byte is damage."""
    if next(artefact.lines(), None) is not None:
        return {"table_name": "metrics", "status": "ok"}
    return {"table_name": "metrics", "status": "partial", "reason": f"{artefact.path} is empty; collect again"}


def _paths(patient: Patient) -> tuple[str, ...]:
    """What may be asked without giving the engine work."""
    titles = (str(row.get("cmd") or "") for row in patient.seen("processes"))
    return (METRICS,) if any(GENERATES_ON_HEALTH.search(title) for title in titles) else (METRICS, HEALTH)


def _start(read: int, places: Sequence[_Place], paths: Sequence[str], bearer: str | None) -> _Round:
    round_ = _Round(read)
    for place in places:
        for path in paths:
            headers = {"Authorization": f"Bearer {bearer}"} if bearer is not None and path == METRICS else {}
            thread = threading.Thread(target=_probe, args=(round_, place, path, headers), name="llmdiag-probe", daemon=True)
            round_.threads.append(thread)
            thread.start()
    return round_


def _probe(round_: _Round, place: _Place, path: str, headers: Mapping[str, str]) -> None:
    reply = _Reply(place, path, time.time())
    opener = partial(netns.open_socket, place.pid, kind=netns.STREAM)
    try:
        reply.answer = http_get.get(opener, place.host, place.port, path, seconds=PATIENCE_S, headers=headers, tls=place.tls)
    except CollectorError as error:
        reply.problem = f"{error.message}; {error.hint}" if error.hint else error.message
    round_.replies.append(reply)


def _end(round_: _Round, door: Door) -> None:
    """Wait for the threads of a round (bounded by their own deadline) and write what they got."""
    round_.ended = True
    for thread in round_.threads:
        thread.join()
    round_.replies.sort(key=lambda reply: (reply.place.port, reply.path))
    probes: list[Probe | metrics_files.Header] = [metrics_files.Header("probes", round_.read, time.time())]
    for reply in round_.replies:
        if reply.answer is None:
            door.note("*", "partial", f"port {reply.place.port} could not be asked: {reply.problem}")
            continue
        answer = reply.answer
        probes.append(Probe(
            round_.read, reply.ts, urlsplit(answer.url).netloc, answer.url, answer.outcome, round(answer.seconds, 4),
            answer.status, skipped=_is_not_http(reply.place, round_),
        ))
    if len(probes) > 1:
        door.jsonl(f"probes-{round_.read}.jsonl", map(msgspec.to_builtins, probes))
    for reply in round_.replies:
        if reply.path == METRICS and reply.answer is not None and not _is_not_http(reply.place, round_):
            _keep(reply, reply.answer, round_, door)


def _keep(reply: _Reply, answer: http_get.Answer, round_: _Round, door: Door) -> None:
    """Write the text of a good answer; note what is no metrics. A 404 says that there are none, which is an answer."""
    if answer.outcome != "answer":
        speaks = any(other.answer is not None and other.answer.outcome == "answer" for other in round_.replies)
        if reply.place.given or not speaks or answer.outcome in ("timeout", "refused"):
            door.note("metrics", "partial", f"{answer.url} gave no answer ({answer.outcome} after {answer.seconds:.1f} s); {OTHER_PORT}")
    elif answer.status in (401, 403):
        door.note("metrics", "partial", f"{answer.url} wants credentials ({answer.status}): give the token with --bearer-file")
    elif answer.status != 200:
        if answer.status != 404:
            door.note("metrics", "partial", f"{answer.url} answered {answer.status}; {OTHER_PORT}")
    elif answer.body.strip() and not prometheus.looks_like(answer.body[:64 << 10]):
        door.note("metrics", "partial", f"{answer.url} answered something that is no /metrics text; {OTHER_PORT}")
    else:
        body = answer.body
        if answer.cut:
            body = body[:body.rfind(b"\n") + 1]
            door.note("metrics", "partial", f"{answer.url}: only the first {http_get.MAX_BODY_BYTES >> 20} MiB were kept")
        head = metrics_files.head(round_.read, reply.ts, answer.status, answer.seconds, answer.url)
        door.text(f"{reply.place.port}-metrics-{round_.read}.txt", head.encode() + body)


def _is_not_http(place: _Place, round_: _Round) -> bool:
    """A port found by ourselves that answered every probe with something else than HTTP (ZeroMQ, gRPC, a store)."""
    outcomes = {reply.answer.outcome for reply in round_.replies if reply.place == place and reply.answer is not None}
    return not place.given and outcomes == {"garbled"}


def _again(places: Sequence[_Place], first: _Round) -> list[_Place]:
    """Places for the second read: without those that do not speak HTTP, and with TLS known where it was tried."""
    answers = [(reply.place, reply.answer) for reply in first.replies if reply.answer is not None]
    tried = {place for place, answer in answers if answer.outcome not in ("timeout", "refused")}
    secure = {place for place, answer in answers if answer.tls}
    left = [place for place in places if not _is_not_http(place, first)]
    return [replace(place, tls=place in secure) if place in tried else place for place in left]


def _bearer(patient: Patient, door: Door) -> str | None:
    token = patient.options.bearer
    if token is not None and not (token.isascii() and token.isprintable()):
        door.note("metrics", "partial", "the bearer token holds characters no header may hold and was not sent; check --bearer-file")
        return None
    return token


def _places(patient: Patient, door: Door) -> list[_Place]:
    """Given ports, else at most MAX_PORTS of those the tree listens on."""
    sockets = patient.seen("sockets")
    listening = [row for row in sockets if row.get("state") == "LISTEN" and row.get("lport") is not None]
    listening.sort(key=lambda row: (row.get("pid") != patient.root_pid, ":" in str(row["laddr"])))
    if patient.options.ports:
        return [_given(port, listening, patient) for port in dict.fromkeys(patient.options.ports)]
    if not sockets and ("sockets" in patient.options.skip or not all(map(procfs.shows_descriptors, patient.pids))):
        door.note("*", "partial", "no port is known because the sockets of the service were not read; name it with --port")
    found: dict[object, _Place] = {}
    for row in _worth_asking(listening, patient):
        found.setdefault(row["lport"], _Place(str(row["laddr"]), int(str(row["lport"])), int(str(row["pid"])), False))
    return list(found.values())[:MAX_PORTS]


def _given(port: int, listening: Sequence[Mapping[str, object]], patient: Patient) -> _Place:
    for row in listening:
        if row["lport"] == port:
            return _Place(str(row["laddr"]), port, int(str(row["pid"])), True)
    return _Place("127.0.0.1", port, patient.root_pid, True)


def _worth_asking(listening: Sequence[Mapping[str, object]], patient: Patient) -> list[Mapping[str, object]]:
    """Ports that may speak HTTP, best first: the root's, then its children's; chosen numbers before random ones.

    A random (ephemeral) port next to a chosen one is the engine's own plumbing and left alone.
    """
    processes = {row.get("pid"): row for row in patient.seen("processes")}
    low, high = _ephemeral_ports()

    def role(row: Mapping[str, object]) -> object:
        return processes.get(row.get("pid"), {}).get("role")

    def is_cache(row: Mapping[str, object]) -> bool:
        return REDIS_LIKE.search(str(processes.get(row.get("pid"), {}).get("comm") or "")) is not None

    def is_random(row: Mapping[str, object]) -> bool:
        return low <= int(str(row["lport"])) <= high

    root = [row for row in listening if row.get("pid") == patient.root_pid and not is_cache(row)]
    others = [row for row in listening if row.get("pid") != patient.root_pid and role(row) not in NEVER_HTTP and not is_cache(row)]
    root = [row for row in root if not is_random(row)] or root
    if root:
        others = [row for row in others if not is_random(row)]
    if any(role(row) != "worker" for row in [*root, *others]):
        others = [row for row in others if role(row) != "worker"]
    return [*root, *sorted(others, key=is_random)]


def _ephemeral_ports() -> tuple[int, int]:
    try:
        low, high = re.findall(r"\d+", Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 32768, 60999
    return int(low), int(high)
