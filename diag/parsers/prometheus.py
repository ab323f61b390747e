"""`/metrics` text, classic or OpenMetrics -> samples, one line at a time so that one bad line costs one line.

    # TYPE vllm:num_requests_running gauge
    vllm:num_requests_running{engine="0",model_name="tiny"} 12.0
    vllm:prompt_tokens_total{engine="0",model_name="tiny"} 2400.0 # {trace_id="a1"} 1.0 1796007298.3

Each sample line goes to the parser of prometheus_client on its own: its classic line grammar also reads
OpenMetrics lines (exemplar and timestamp are ignored). Feeding it whole texts would stop at the first bad
line, lose line numbers, and rename counters that lack `_total`.
"""

import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from prometheus_client.parser import text_string_to_metric_families

from diag.errors import Garbled
from diag.model import Artefact

MAX_BYTES = 32 << 20
MAX_LINE_BYTES = 64 << 10
LEFT_OUT = re.compile(r"[^\s{]*_bucket(?=[\s{])|python_gc_[^\s{]*")
"""Histogram buckets (nine lines in ten of a vLLM server) and the garbage collector of the API server."""
SAMPLE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*(\{[^\n]*\})?[ \t]+([-+]?[0-9.][-+0-9.eE]*|[-+]?Inf|NaN)(\s|$)")
META = re.compile(r"# (HELP|TYPE) [A-Za-z_:][A-Za-z0-9_:]* ")
RANKS = (("dp", "dp_rank"), ("pp", "pp_rank"), ("tp", "tp_rank"))


@dataclass(frozen=True)
class Sample:
    """One sample line. `value` is None for NaN."""

    line: int
    name: str
    labels: Mapping[str, str]
    value: float | None


@dataclass
class Reading:
    """What a text held besides its samples; filled while `samples` is consumed."""

    kept: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    first_bad: int | None = None
    """Line number of the first line that is no sample."""
    cut: bool = False
    """Only the first MAX_BYTES were read."""


def looks_like(head: bytes) -> bool:
    """Is this the beginning of a `/metrics` text of anybody (plain or gzip)?"""
    lines = _plain(head).decode("utf-8", "replace").splitlines()[:200]
    return any(META.match(line) for line in lines) or _is_known_engine(lines)


def is_gzip(head: bytes) -> bool:
    """Gzip magic?"""
    return head.startswith(b"\x1f\x8b\x08")


def samples(stream: BinaryIO, reading: Reading) -> Iterator[Sample]:
    """Sample lines of a text, in order; `reading` says afterwards what was left out, bad or cut."""
    first = stream.read(3)
    stream.seek(0)
    text = io.BufferedReader(gzip.GzipFile(fileobj=stream)) if is_gzip(first) else stream
    for number, raw in _bounded(text, reading):
        line = raw.decode("utf-8", "replace").strip()
        if not line or line.startswith("#"):
            continue
        skip = LEFT_OUT.match(line)
        if skip is not None:
            reading.left_out["python_gc_*" if skip[0].startswith("python_gc_") else "*_bucket"] += 1
            continue
        sample = _sample(number, line)
        if sample is None:
            reading.bad += 1
            reading.first_bad = number if reading.first_bad is None else reading.first_bad
        else:
            reading.kept += 1
            yield sample


def rows(artefact: Artefact, known: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Rows of `metrics` with what is `known` of the read (read, ts, target). All good lines come first.

    Raises Garbled afterwards when lines were bad, the text is no metrics at all, or it was cut at MAX_BYTES.
    """
    reading = Reading()
    with artefact.opener() as stream:
        try:
            for sample in samples(stream, reading):
                labels = json.dumps(sample.labels, sort_keys=True, ensure_ascii=False)
                yield {
                    **known, "name": sample.name, "engine": engine(sample.labels), "labels": labels,
                    "value": sample.value, "source": artefact.at(sample.line),
                }
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            after = f"{artefact.path}: damaged gzip after {reading.kept} samples: {error}"
            raise Garbled(after, hint="copy the file again") from error
    _complain(artefact, reading)


def engine(labels: Mapping[str, str]) -> str | None:
    """Which engine a sample is about: vLLM's `engine` (with Ray's replica), SGLang's ranks as `dp0/tp1`."""
    found = labels.get("engine")
    if found is not None:
        replica = labels.get("ReplicaId")
        return found if replica is None else f"{found}@{replica}"
    ranks = [f"{short}{labels[name]}" for short, name in RANKS if labels.get(name) is not None]
    return "/".join(ranks) if ranks else None


def _complain(artefact: Artefact, reading: Reading) -> None:
    if reading.first_bad is not None:
        none = reading.kept == 0 and not reading.left_out
        what = "no /metrics text" if none else f"not a sample line ({reading.bad} such were left out)"
        place = artefact.at(reading.first_bad)
        raise Garbled(f"{place}: {what}", hint="save the answer of GET /metrics as it is")
    if reading.cut:
        cut = f"{artefact.path}: only the first {MAX_BYTES >> 20} MiB were read"
        raise Garbled(cut, hint="hand in one read of /metrics per file")


def _sample(number: int, line: str) -> Sample | None:
    """One line -> Sample, or None when it is not one."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        (family,) = text_string_to_metric_families(line)
        (sample,) = family.samples
        value = float(sample.value)
    except (ValueError, OverflowError):
        return None
    return Sample(number, sample.name, sample.labels, None if math.isnan(value) else value)


def _bounded(text: BinaryIO | io.BufferedReader, reading: Reading) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line), never more than MAX_BYTES in all nor an endless line in memory."""
    left = MAX_BYTES
    number = 0
    while raw := text.readline(left + 1):
        if len(raw) > left:
            reading.cut = True
            return
        left -= len(raw)
        number += 1
        yield number, raw


def _plain(head: bytes) -> bytes:
    """The beginning of a gzip member unpacked (at most 64 KiB); other bytes as they are."""
    if not is_gzip(head):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, 64 << 10)
    except zlib.error:
        return b""


def _is_known_engine(lines: list[str]) -> bool:
    """Sample lines without comments, as `grep -v '^#'` leaves them: only of engines known by name."""
    names = ("vllm:", "vllm_", "ray_vllm", "sglang:", "sglang_", "process_")
    return any(line.startswith(names) and SAMPLE.match(line) is not None for line in lines)
