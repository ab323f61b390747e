"""One look at a backend's /metrics: what came back and when. The same for live polling, for recorded folders and for --watch.

A recorded folder holds the bodies and one list, `reads.jsonl`, one line per read in the order they were made:

    {"url":"http://127.0.0.1:8000/metrics","file":"0001.txt","outcome":"answer","status":200,"ts":1796007298.31,"monotonic_s":512.4,"seconds":0.012}
    {"url":"http://127.0.0.1:8000/metrics","outcome":"timeout","ts":1796007308.31,"monotonic_s":522.4,"seconds":5.0}

- `url` is the backend: reads of one URL are one sequence, several URLs in one folder are several backends.
- `file` is the body as the backend wrote it (plain or gzip), a name inside the folder; absent where there was none.
- `outcome` is answer | timeout | refused | reset | garbled (as in the table probes); `status` the HTTP status of an answer.
- `ts` is epoch seconds, `monotonic_s` seconds of a clock that never jumps, both taken when the read was *sent*; either may be
  absent. A sequence with one read of unknown time has no known duration at all.
- `seconds` is how long the answer took. Unknown keys are errors.

A folder without `reads.jsonl` is read by names and head lines, as the metrics collector reads loose files.
"""

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from diag.errors import BadInput
from diag.parsers import prometheus
from diag.parsers.prometheus import Sample

Outcome = Literal["answer", "timeout", "refused", "reset", "garbled"]
LIST = "reads.jsonl"
LOADING = b"oading model"
"""What llama.cpp answers to everything, with 503, until its weights are there."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One line of `reads.jsonl`."""

    url: str
    outcome: Outcome
    file: str | None = None
    status: int | None = None
    ts: float | None = None
    monotonic_s: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Read:
    """One read; two are never equal, however alike. `samples` is empty unless it was an answer with lines of metrics; `problem` says what was wrong with it."""

    outcome: Outcome
    ts: float | None = None
    """Epoch seconds (UTC) when it was sent; None = not known."""
    monotonic_s: float | None = None
    """Seconds of a clock that never jumps; None = not known."""
    status: int | None = None
    samples: tuple[Sample, ...] = ()
    problem: str = ""
    loading: bool = False
    """The server says itself that it still loads the model."""
    seconds: float | None = None


def read_of(record: Record, body: bytes | None) -> Read:
    """What was noted about a read and its body -> Read. Never raises on a bad body: that is a state of the backend, not an error."""
    read = Read(record.outcome, record.ts, record.monotonic_s, record.status, seconds=record.seconds)
    if record.outcome != "answer":
        return replace(read, problem=f"no answer: {record.outcome}")
    if record.status not in (None, 200):
        return replace(read, problem=f"HTTP {record.status}", loading=record.status == 503 and LOADING in (body or b"")[:4096])
    samples, problem = parse(body or b"")
    return replace(read, samples=samples, problem=problem)


def parse(body: bytes) -> tuple[tuple[Sample, ...], str]:
    """A body -> its samples, and what was wrong ("" = nothing). Lines that are none cost only themselves; bounded by the parser."""
    reading = prometheus.Reading()
    found: list[Sample] = []
    try:
        found.extend(prometheus.samples(io.BytesIO(body), reading))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return tuple(found), f"damaged gzip: {error}"
    if reading.cut:
        return tuple(found), f"only the first {prometheus.MAX_BYTES >> 20} MiB were read"
    if found or reading.first_bad is None:
        return tuple(found), "" if reading.first_bad is None else f"{reading.bad} lines are no samples, the first is line {reading.first_bad}"
    return (), "HTML, not metrics" if body.lstrip()[:1] == b"<" else f"no metrics: line {reading.first_bad} is no sample"


def records(text: bytes, where: str) -> Iterator[Record]:
    """Lines of a `reads.jsonl`. Raises BadInput naming the line."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line, type=Record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{where}:{number}: {error}", hint="one line per read; diag/health/reads.py shows the keys") from error
        if record.file is not None and ("/" in record.file or "\\" in record.file or record.file in ("", ".", "..")):
            raise BadInput(f"{where}:{number}: file {record.file!r} is not a name inside the folder", hint="keep the bodies beside reads.jsonl")
        yield record


def by_backend(found: Sequence[tuple[Record, bytes | None]]) -> Mapping[str, tuple[Read, ...]]:
    """Records with their bodies -> the reads of each URL, in the order they were made."""
    backends: dict[str, list[Read]] = {}
    for record, body in found:
        backends.setdefault(record.url, []).append(read_of(record, body))
    return {url: tuple(reads) for url, reads in backends.items()}


def elapsed_s(first: Read, last: Read) -> float | None:
    """Seconds from one read to a later one; None = not known. A clock that went backwards is not believed."""
    if first.monotonic_s is not None and last.monotonic_s is not None and last.monotonic_s >= first.monotonic_s:
        return last.monotonic_s - first.monotonic_s
    if first.ts is not None and last.ts is not None and last.ts >= first.ts:
        return last.ts - first.ts
    return None
