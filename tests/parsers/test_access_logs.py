"""Access logs of proxies: how long, how many bytes, who left, and who ended it."""

import pytest

from tests.parsers.event_cases import at, parsed

HEAD = "Feb  6 12:14:15 lb haproxy[14389]: "
OK = '10.0.1.2:33317 [06/Feb/2026:12:14:14.655] api~ vllm/gpu-1 10/500/30/69/609 200 2750 - - ---- 12/8/4/2/0 3/7 "POST /v1/chat/completions?x=1 HTTP/1.1"'


def test_haproxy() -> None:
    found = parsed(HEAD + OK + "\n")
    (row,) = found["http_events"]
    assert row == {
        "ts": at("2026-02-06T12:14:15.264"), "dated": True, "origin": "haproxy", "method": "POST", "path": "/v1/chat/completions", "status": 200, "client": "10.0.1.2",
        "seconds": 0.609, "bytes": 2750, "user_agent": None, "backend": "vllm/gpu-1", "ended": "----", "queue_s": 0.5, "first_byte_s": 0.069, "queued": 10,
        "source": "x.log:1",
    }  # fmt: skip
    assert [(item["table_name"], item["status"]) for item in found["collected"]] == [("http_events", "ok")]


ENDS = [
    # times, status, server, flags, what is known
    ("10/-1/-1/-1/45001 503 0 - - sQ-- ", "vllm/<NOSRV>", {"status": 503, "ended": "sQ--", "queue_s": None, "first_byte_s": None, "seconds": 45.001, "backend": None}),
    ("1/0/-1/-1/3003 503 217 - - SC-- ", "vllm/gpu-1", {"status": 503, "ended": "SC--", "queue_s": 0.0, "backend": "vllm/gpu-1"}),
    ("1/0/2/-1/45001 504 0 - - sH-- ", "vllm/gpu-1", {"status": 504, "ended": "sH--", "first_byte_s": None}),
    ("1/0/2/-1/45001 -1 0 - - CH-- ", "vllm/gpu-1", {"status": None, "ended": "CH--"}),
    ("1/0/2/9/+45001 200 +5000 - - CD-- ", "vllm/gpu-1", {"status": 200, "ended": "CD--", "seconds": 45.001, "bytes": 5000}),
]


@pytest.mark.parametrize(("middle", "server", "known"), ENDS)
def test_how_a_request_of_haproxy_ended(middle: str, server: str, known: dict[str, object]) -> None:
    line = f'10.0.1.2:33317 [06/Feb/2026:12:14:14.655] api {server} {middle}1/1/1/1/+2 0/0 {{gpu.example|curl/8.5.0}} {{}} "GET /health HTTP/1.1"'
    (row,) = parsed(HEAD + line + "\n")["http_events"]
    assert {key: row[key] for key in known} == known
    assert row["user_agent"] == "curl/8.5.0"


def test_haproxy_without_a_request_and_in_another_zone() -> None:
    bad = '10.0.1.2:33317 [06/Feb/2026:12:14:14.655] api api/<NOSRV> -1/-1/-1/-1/5000 408 212 - - cR-- 1/1/0/0/0 0/0 "<BADREQ>"'
    found = parsed(f"{bad}\nFeb  6 12:14:15 lb haproxy[1]: Proxy api started.\n{OK}\n", tz=None)
    assert [(row["method"], row["path"], row["status"], row["source"]) for row in found["http_events"]] == [(None, None, 408, "x.log:1"), ("POST", "/v1/chat/completions", 200, "x.log:3")]
    assert found["event_files"][0]["assumed"] == "zone UTC"
    berlin = parsed(f"{OK}\n", tz="Europe/Berlin")["http_events"][0]["ts"]
    assert berlin == at("2026-02-06T11:14:15.264")


NGINX = '10.0.0.9 - alice [30/Nov/2026:02:52:45 +0100] "POST /v1/chat/completions?key=1 HTTP/1.1" {} {} "-" "OpenAI/Python 1.2"{}'
TAILS = [
    ("200 91", "", {"status": 200, "bytes": 91, "seconds": None, "ended": None}),
    ("499 0", " 45.002", {"status": 499, "seconds": 45.002, "ended": "client left"}),
    ("200 91", ' rt=1.204 uct="0.001" uht="0.400" urt="1.203" ua="10.0.0.7:8000"', {"seconds": 1.204, "first_byte_s": 0.4, "backend": "10.0.0.7:8000"}),
    ("200 91", " 812 1.204 [llm-8000] [] 10.0.0.7:8000 91 1.203 200 4f6e", {"seconds": 1.204, "backend": "10.0.0.7:8000"}),
    ("502 150", ' "-" request_time=0.001 upstream="10.0.0.7:8000"', {"status": 502, "seconds": 0.001, "backend": "10.0.0.7:8000"}),
]


@pytest.mark.parametrize(("answer", "tail", "known"), TAILS)
def test_nginx(answer: str, tail: str, known: dict[str, object]) -> None:
    status, size = answer.split()
    (row,) = parsed(NGINX.format(status, size, tail) + "\n")["http_events"]
    assert {key: row.get(key) for key in known} == known
    assert (row["ts"], row["method"], row["path"], row["client"], row["user_agent"], row["origin"]) == (
        at("2026-11-30T01:52:45"), "POST", "/v1/chat/completions", "10.0.0.9", "OpenAI/Python 1.2", "nginx",
    )  # fmt: skip
