"""What the metrics collector writes, and what people save from `curl …/metrics`: which read of which target it is."""

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from diag.errors import Garbled
from diag.model import Artefact

# # llmdiag read=0 ts=1796007298.31 status=200 seconds=0.012
HEAD = re.compile(r"# llmdiag read=(\d+) ts=(\d+(?:\.\d+)?) ")
# # llmdiag url=http://127.0.0.1:8000/metrics
HEAD_URL = re.compile(r"# llmdiag url=(\S+)")
NUMBER = re.compile(r"[-_. ]?(\d+(?:\.\d+)?)$")
WORD = re.compile(r"[-_. ]?(before|first|start|after|second|end)$", re.IGNORECASE)
EARLY = frozenset({"before", "first", "start"})
EPOCH_S = (1e9, 4e9)
PORTS = range(1024, 65536)


class Header(msgspec.Struct, frozen=True):
    """First line of `probes-N.jsonl`."""

    artefact: str
    read: int
    ts: float


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GET. `ts` is epoch seconds; `skipped` marks a port that turned out not to speak HTTP."""

    read: int
    ts: float
    target: str
    url: str
    outcome: str
    seconds: float
    status: int | None = None
    skipped: bool = False


def head(read: int, ts: float, status: int, seconds: float, url: str) -> str:
    """The two comment lines above a text of /metrics."""
    return f"# llmdiag read={read} ts={ts:.3f} status={status} seconds={seconds:.4f}\n# llmdiag url={url}\n"


def utc(epoch_s: float) -> datetime.datetime:
    """Epoch seconds -> UTC without zone."""
    return datetime.datetime.fromtimestamp(epoch_s, datetime.UTC).replace(tzinfo=None)


def probes(artefact: Artefact) -> Iterator[dict[str, object]]:
    """Rows of `probes`. Raises Garbled."""
    number = 0
    for number, line in artefact.lines():
        try:
            if number == 1:
                msgspec.json.decode(line, type=Header)
                continue
            probe = msgspec.json.decode(line, type=Probe)
            ts = utc(probe.ts)
        except (msgspec.DecodeError, ValueError, OverflowError, OSError) as error:
            raise Garbled(f"{artefact.at(number)}: not a line of probes: {error}", hint="collect again") from error
        if not probe.skipped:
            yield {
                "read": probe.read, "ts": ts, "target": probe.target, "url": probe.url, "outcome": probe.outcome,
                "status": probe.status, "seconds": probe.seconds, "source": artefact.at(number),
            }
    if number == 0:
        raise Garbled(f"{artefact.path} is empty", hint="collect again")


def reads(texts: Sequence[Artefact]) -> Iterator[tuple[Artefact, dict[str, object]]]:
    """Each text with its read, ts and target: from our own head lines, else from the names of the files. Raises Garbled."""
    saved: list[tuple[Artefact, _Name]] = []
    for artefact in texts:
        known = _own(artefact)
        if known is None:
            saved.append((artefact, _name(artefact.path)))
        else:
            yield artefact, known
    counts: dict[str, int] = {}
    for artefact, name in sorted(saved, key=lambda pair: pair[1][:3]):
        yield artefact, {"read": counts.get(name.target, 0), "ts": name.ts, "target": name.target}
        counts[name.target] = counts.get(name.target, 0) + 1


def _own(artefact: Artefact) -> dict[str, object] | None:
    with artefact.opener() as stream:
        first, second = (stream.readline(4096).decode("utf-8", "replace") for _ in range(2))
    match, url = HEAD.match(first), HEAD_URL.match(second)
    if match is None or url is None:
        return None
    try:
        return {"read": int(match[1]), "ts": utc(float(match[2])), "target": urlsplit(url[1]).netloc}
    except (ValueError, OverflowError, OSError) as error:
        raise Garbled(f"{artefact.at(1)}: not a head line of ours: {error}", hint="collect again") from error


class _Name(NamedTuple):
    """What the name of a saved file says; `order` sorts the reads of one target."""

    target: str
    order: float
    path: str
    ts: datetime.datetime | None


def _name(path: str) -> _Name:
    """The target is the name without what tells its reads apart.

    `idle/metrics2.txt` is a later read of `idle/metrics` than `idle/metrics1.txt`; `metrics-1796007298.txt` says when;
    the number of `metrics-8000.txt` is a port and belongs to the target.
    """
    folder, slash, name = path.rpartition("/")
    stem = re.sub(r"(\.(gz|txt|prom|metrics|log))+$", "", name)
    number, word = NUMBER.search(stem), WORD.search(stem)
    ts, order, cut = None, 0.0, stem
    if number is not None and not (float(number[1]) in PORTS and len(number[1]) >= 4):
        order, cut = float(number[1]), stem[:number.start()]
        ts = utc(order) if EPOCH_S[0] <= order < EPOCH_S[1] else None
    elif word is not None:
        order, cut = 0.0 if word[1].lower() in EARLY else 1.0, stem[:word.start()]
    return _Name(f"{folder}{slash}{cut or 'metrics'}", order, path, ts)
