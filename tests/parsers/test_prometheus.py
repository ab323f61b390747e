"""/metrics text of engines, proxies and careless people."""

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.errors import Garbled
from diag.model import Artefact
from diag.parsers import prometheus

CLASSIC = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="/models/tiny"} 12.0
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 15198.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 229.0
vllm:iteration_tokens_total_count{engine="0"} 229.0
vllm:iteration_tokens_total_sum{engine="0"} 5146.0
# TYPE tgi_request_count counter
tgi_request_count 7
"""

OPENMETRICS = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="1"} 2400 # {trace_id="a # b"} 1.0 1796007298.3
vllm:plain_total 5 # {trace_id="a"} 1.0
vllm:stamped{engine="1"} 5 1796007298.25
vllm:prompt_tokens_created{engine="1"} 1796007244.1
# EOF
"""


def rows(text: str | bytes) -> list[dict[str, object]]:
    data = text.encode() if isinstance(text, str) else text
    return list(prometheus.rows(Artefact.of_bytes("m.txt", "metrics", data), {"read": 0, "ts": None, "target": "m"}))


def test_classic_text_keeps_names_as_they_are_written() -> None:
    found = rows(CLASSIC)
    assert [(row["name"], row["value"], row["engine"], row["source"]) for row in found] == [
        ("vllm:num_requests_running", 12.0, "0", "m.txt:3"), ("vllm:iteration_tokens_total_count", 229.0, "0", "m.txt:9"),
        ("vllm:iteration_tokens_total_sum", 5146.0, "0", "m.txt:10"), ("tgi_request_count", 7.0, None, "m.txt:12"),
    ]
    assert found[0]["labels"] == '{"engine": "0", "model_name": "/models/tiny"}'
    assert found[3]["labels"] == "{}"


def test_what_is_left_out_is_counted() -> None:
    reading = prometheus.Reading()
    assert len(list(prometheus.samples(io.BytesIO(CLASSIC.encode()), reading))) == reading.kept == 4
    assert (dict(reading.left_out), reading.bad, reading.cut) == ({"*_bucket": 2, "python_gc_*": 1}, 0, False)


def test_openmetrics_text_with_exemplars_and_timestamps() -> None:
    assert [(row["name"], row["value"]) for row in rows(OPENMETRICS)] == [
        ("vllm:prompt_tokens_total", 2400.0), ("vllm:plain_total", 5.0), ("vllm:stamped", 5.0), ("vllm:prompt_tokens_created", 1796007244.1),
    ]


def test_nan_is_unknown_and_infinity_is_a_value() -> None:
    assert [row["value"] for row in rows("a NaN\nb +Inf\nc -Inf\nd 0\n")] == [None, float("inf"), float("-inf"), 0.0]


@pytest.mark.parametrize("labels, engine", [
    ('engine="3"', "3"), ('engine="0",ReplicaId="r7"', "0@r7"), ('tp_rank="0"', "tp0"), ('dp_rank="1",pp_rank="0",tp_rank="2"', "dp1/pp0/tp2"),
    ('model_name="x"', None), ('engine=""', ""),
])
def test_engine_is_the_engine_or_the_rank(labels: str, engine: str | None) -> None:
    assert [row["engine"] for row in rows(f"a{{{labels}}} 1\n")] == [engine]


def test_labels_with_every_kind_of_quote() -> None:
    (row,) = rows('a{z="1",b="say \\"hi\\", {x} # 2",c="back\\\\slash",d="Grüße"} 1\n')
    assert row["labels"] == '{"b": "say \\"hi\\", {x} # 2", "c": "back\\\\slash", "d": "Grüße", "z": "1"}'


def test_bad_lines_cost_themselves_only_and_the_first_is_named() -> None:
    found = []
    with pytest.raises(Garbled, match=r"^m\.txt:2: not a sample line \(3 such were left out\)"):
        for row in prometheus.rows(Artefact.of_bytes("m.txt", "metrics", b"a 1\nb{x=1} 2\nc\n" + b"d 1" + b"0" * 400 + b"\nlast 4\n"), {}):
            found.append(row["name"])
    assert found == ["a", "last"]


def test_endless_line_is_one_bad_line() -> None:
    line = b'a{x="' + b"y" * (1 << 20) + b'"} 1\n'
    found = []
    with pytest.raises(Garbled, match=r"m\.txt:1"):
        for row in prometheus.rows(Artefact.of_bytes("m.txt", "metrics", line + b"b 1\n"), {}):
            found.append(row["name"])
    assert found == ["b"]


@pytest.mark.parametrize("text", [
    "<!doctype html>\n<html><body># HELP me</body></html>\n", '{"detail":"Not Found"}\n', "\x00\x01\x02\n", "Traceback (most recent call last):\n",
])
def test_what_is_no_metrics_says_so(text: str) -> None:
    with pytest.raises(Garbled, match=r"m\.txt:1: no /metrics text"):
        rows(text)
    assert not prometheus.looks_like(text.encode())


def test_empty_text_is_no_error() -> None:
    assert rows("") == rows("\n\n# a comment\n") == []


def test_gzip_and_damaged_gzip() -> None:
    packed = gzip.compress(CLASSIC.encode())
    assert rows(packed) == rows(CLASSIC)
    assert prometheus.looks_like(packed)
    with pytest.raises(Garbled, match=r"m\.txt: damaged gzip"):
        rows(packed[:-12])
    with pytest.raises(Garbled, match=r"m\.txt: damaged gzip"):
        rows(b"\x1f\x8b\x08" + b"x" * 100)


def test_size_is_bounded_also_for_a_gzip_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_BYTES", 1000)
    whole = b"a_total 1\n" * 100
    assert len(rows(whole)) == 100
    for text in (whole + b"b 1\n", whole[:-1] + b"2", gzip.compress(b"a_total 1\n" * 10**5)):
        found = []
        if text == whole[:-1] + b"2":
            assert len(rows(text)) == 100
            continue
        with pytest.raises(Garbled, match=r"m\.txt: only the first"):
            for row in prometheus.rows(Artefact.of_bytes("m.txt", "metrics", text), {}):
                found.append(row)
        assert len(found) == 100


def test_a_hundred_megabytes_end_at_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    line = b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 12.0\n'
    with path.open("wb") as stream:
        for _ in range(100):
            stream.write(line * ((1 << 20) // len(line)))
        stream.write(b"late 1\n")
    with pytest.raises(Garbled, match="only the first 32 MiB"):
        list(prometheus.rows(Artefact("m.txt", "metrics", lambda: path.open("rb")), {}))


@pytest.mark.parametrize("head, expected", [
    (b"# HELP a b\n", True), (b"\n# TYPE sglang:token_usage gauge\n", True), (b'vllm:num_requests_running{engine="0"} 1.0\n', True),
    (b"vllm_num_requests_running 1.0\n", True), (b"process_start_time_seconds 1.79e+09\n", True),
    (b"vllm:num_requests_running was 1.0\n", False), (b"some_counter_total 1\n", False), (b"", False),
])
def test_looks_like(head: bytes, expected: bool) -> None:
    assert prometheus.looks_like(head) is expected


@given(st.text(max_size=200))
def test_no_text_makes_it_fail_otherwise(text: str) -> None:
    try:
        found = rows(text)
    except Garbled:
        return
    assert all(row["name"] for row in found)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_otherwise(data: bytes) -> None:
    prometheus.looks_like(data)
    try:
        rows(data)
    except Garbled:
        return


@given(st.text('a{}"=,\\ #\n1.eN_:', max_size=60))
def test_no_near_miss_makes_it_fail_otherwise(text: str) -> None:
    try:
        rows(text)
    except Garbled:
        return
