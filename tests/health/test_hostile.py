"""Whatever a server does to a read of /metrics: it ends in time, with a state and a sentence, and never with exit 1."""

import contextlib
import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.health.checking import Checked, Checker, Settings
from diag.health.polling import MAX_BODY_BYTES, backend_of
from diag.repro.http_post import Wire
from tests.health.toy import Toy, always, text
from tests.live.run import llmdiag
from tests.repro.endpoint import Handler, Response, Server, answer, serving

GOOD = Toy(running=2).metrics()
HTML = b"<!DOCTYPE html><html><head><title>Console</title></head><body><h1>Welcome</h1></body></html>"
BOMB = gzip.compress(b"# " + b"x" * (200 << 20) + b"\n", 9)


def checked(url: str, *, timeout_s: float = 5.0, token: str | None = None) -> Checked:
    settings = Settings(reads=3, interval_s=0.01, timeout_s=timeout_s, probe=False)
    (found,) = Checker(Wire(max_body_bytes=MAX_BODY_BYTES), [backend_of(url, token)], settings, threading.Event()).once()
    return found


@pytest.mark.parametrize(("response", "state", "says"), [
    (Response(200, HTML, {"Content-Type": "text/html"}), "unreadable", "HTML"),
    (Response(500, b"Internal Server Error"), "unreadable", "HTTP 500"),
    (Response(502, HTML), "unreadable", "HTTP 502"),
    (Response(503, b'{"error":{"message":"Loading model","code":503}}'), "starting", "loads the model"),
    (Response(401, b""), "unreadable", "HTTP 401"),
    (Response(404, b"Not Found"), "no-metrics", "404"),
    (Response(200, b""), "no-metrics", "empty"),
    (Response(200, b"python_info 1.0\n"), "no-metrics", "none of an engine"),
    (answer(iter=1), "unreadable", "no metrics"),
    (text(GOOD.replace("2", "NaN")), "no-metrics", "no gauge of running requests"),
    (text(GOOD[:300]), "busy-unproven", ""),
    (Response(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + GOOD.encode()), "unreachable", "reset"),
    (Response(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "unreachable", "reset"),
    (Response(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "unreachable", "reset"),
    (Response(raw=b""), "unreachable", "reset"),
    (Response(raw=b"SSH-2.0-OpenSSH_9.2\r\n"), "unreadable", "no HTTP"),
    (Response(raw=b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n"), "unreadable", "headers"),
    (Response(200, gzip.compress(GOOD.encode()), {"Content-Encoding": "gzip"}), "busy-unproven", "2 requests run"),
    (Response(200, gzip.compress(GOOD.encode())[:-12], {"Content-Encoding": "gzip"}), "unreadable", "damaged gzip"),
    (Response(200, b"\x1f\x8b\x08 is no gzip", {"Content-Encoding": "gzip"}), "unreadable", "gzip"),
    (Response(200, zlib.compress(GOOD.encode()), {"Content-Encoding": "deflate"}), "unreadable", "packed as 'deflate'"),
    (Response(200, GOOD.encode(), {"Content-Encoding": "br"}), "unreadable", "packed as 'br'"),
    (Response(200, BOMB, {"Content-Encoding": "gzip"}), "unreadable", "MiB"),
    (Response(200, b"\xff\xfe" * 100), "unreadable", "no metrics"),
    (Response(307, b"", {"Location": "https://elsewhere.example/metrics?key=abc"}), "unreadable", "redirects to https://elsewhere.example:443, another place"),
    (Response(302, b"", {"Location": "//[::1"}), "unreadable", "redirects to what is no URL"),
    (Response(302, b"", {"Location": "javascript:alert(1)"}), "unreadable", "redirects"),
    (Response(301, b"", {"Location": "/metrics"}), "unreadable", "redirects from one redirect to the next"),
])  # fmt: skip
def test_every_kind_of_answer_has_a_state(response: Response, state: str, says: str) -> None:
    with serving(always(response)) as server:
        found = checked(server.url)
    assert (found.verdict.state, found.verdict.exit) == (state, 0 if state == "starting" else 3), found
    assert says in found.verdict.reason, found
    assert {path for path, _, _ in server.asked} == {"/metrics"}


def test_a_redirect_within_the_server_is_followed() -> None:
    def handler(path: str, body: object, headers: object) -> Response:
        return text(GOOD) if path == "/metrics/" else Response(307, b"", {"Location": "/metrics/"})

    with serving(handler) as server:
        found = checked(server.url)
    assert found.verdict.state == "busy-unproven", found
    assert found.verdict.engines[0].running == 2


def test_a_token_does_not_follow_a_redirect() -> None:
    with serving(always(text(GOOD))) as other, serving(always(Response(307, b"", {"Location": f"{other.url}/metrics"}))) as server:
        found = checked(server.url, token="sk-secret")
    assert found.verdict.state == "unreadable"
    assert other.asked == [], "the token went elsewhere"
    assert {headers["authorization"] for _, _, headers in server.asked} == {"Bearer sk-secret"}


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def speaking(head: bytes, line: bytes = b"", *, rest_s: float | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server that says `head` and then `line` again and again, with a rest in between; without a line it closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def one(plain: socket.socket) -> None:
            with plain, contextlib.suppress(OSError):
                wire = plain if tls is None else tls.wrap_socket(plain, server_side=True)
                with wire:
                    wire.recv(4096)
                    wire.sendall(head)
                    while line and not done.is_set():
                        wire.sendall(line)
                        if rest_s is not None:
                            done.wait(rest_s)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}")
        done.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("line", [GOOD.encode() * 500, b"x" * 65536], ids=["metrics", "one line"])
def test_metrics_without_end_are_read_to_a_limit(line: bytes) -> None:
    with speaking(OK + b"Content-Type: text/plain\r\n\r\n", line) as server:
        found = checked(server.url)
    assert found.verdict.state == "unreadable", found
    assert "longer than 16 MiB" in found.verdict.reason


@pytest.mark.parametrize(("head", "line", "rest_s", "state", "says"), [
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n", None, "unreachable", "timeout"),
    (b"", b"H", 0.05, "unreachable", "timeout"),
    (OK, b"X", 0.05, "unreachable", "timeout"),
    (CHUNKED, b"1\r\na\r\n", 0.05, "unreachable", "timeout"),
    (CHUNKED + b"0\r\n", b"X: y\r\n", None, "unreachable", "timeout"),
    (CHUNKED + b"ffffffffffffffff\r\n", b"a", 0.05, "unreachable", "timeout"),
    (b"", b"x" * 65536, None, "unreadable", "no HTTP"),
    (OK, b"X: y\r\n", None, "unreadable", "headers"),
    (OK + b"X: ", b"y" * 65536, None, "unreadable", "no HTTP"),
    (CHUNKED, b"0" * 65536, None, "unreadable", "no HTTP"),
    (CHUNKED + b"-5\r\nab", b"", None, "unreadable", ""),
    (OK + b"Content-Length: 99999999999999999999\r\n\r\na 1\n", b"", None, "unreachable", "reset"),
    (b"HTTP/1.1 99999 X\r\n\r\n", b"", None, "unreadable", "no HTTP"),
    (b"HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n", b"", None, "unreadable", "HTTP 101"),
    (b"\x1b[31mHTTP/1.1 200 OK\r\n\r\n", b"", None, "unreadable", "no HTTP"),
    (OK + b"\r\n" + GOOD.encode("utf-16"), b"", None, "unreadable", "no metrics"),
    (OK + b"\r\n" + GOOD.replace("\n", "\0\n").encode(), b"", None, "unreadable", "no metrics"),
], ids=str)  # fmt: skip
def test_heads_and_chunks_without_end_or_sense(head: bytes, line: bytes, rest_s: float | None, state: str, says: str) -> None:
    with speaking(head, line, rest_s=rest_s) as server:
        found = checked(server.url, timeout_s=0.3)
    assert (found.verdict.state, found.verdict.exit) == (state, 3), found
    assert says in found.verdict.reason, found


def test_a_hundred_megabytes_end_the_same_way_on_the_command_line(tmp_path: Path) -> None:
    with serving(always(Response(200, GOOD.encode() * (100 * (1 << 20) // len(GOOD))))) as server:
        said = llmdiag("health", server.url, "--reads", "2", "--interval", "0.2", "-f", "json")
    assert said.code == 3, said.err
    assert said.json["backends"][0]["state"] == "unreadable"


@pytest.mark.parametrize("response", [Response(200, GOOD.encode(), trickle_s=0.05), Response(wait_for=threading.Event())], ids=["trickle", "silence"])
def test_who_is_slow_has_one_deadline_for_the_whole_read(response: Response) -> None:
    with serving(always(response)) as server:
        found = checked(server.url, timeout_s=0.3)
    assert found.verdict.state == "unreachable", found
    assert "timeout" in found.verdict.reason


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = checked(f"http://127.0.0.1:{port}")
    assert (found.verdict.state, found.verdict.exit) == ("unreachable", 3)
    assert "refused" in found.verdict.reason


def test_no_such_host() -> None:
    found = checked("http://no-such-host.invalid:8000")
    assert (found.verdict.state, found.verdict.exit) == ("unreachable", 3)


def test_a_plain_port_asked_in_tls() -> None:
    with serving(always(text(GOOD))) as server:
        found = checked(server.url.replace("http:", "https:"))
    assert (found.verdict.state, found.verdict.exit) == ("unreadable", 3), found
    assert "WRONG_VERSION_NUMBER" in found.verdict.reason


def test_a_tls_port_asked_in_plain_text_and_with_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate")
    pem = tmp_path / "server.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*command, "-keyout", str(pem), "-out", str(tmp_path / "cert.pem")], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", pem)
    with speaking(OK + b"\r\n" + GOOD.encode(), tls=context) as server:
        plain = checked(server.url)
        unsigned = checked(server.url.replace("http:", "https:"))
    assert (plain.verdict.state, plain.verdict.exit) == ("unreachable", 3), plain
    assert (unsigned.verdict.state, unsigned.verdict.exit) == ("unreadable", 3), unsigned
    assert "self-signed certificate" in unsigned.verdict.reason


def test_infinity_is_a_value_and_json_stays_json() -> None:
    handler: Handler = always(text(GOOD.replace("} 2", "} +Inf").replace("} 1000.0", "} -Inf")))
    with serving(handler) as server:
        said = llmdiag("health", server.url, "--reads", "2", "--interval", "0.05", "--no-probe", "-f", "json")
    assert said.code == 3, said.out + said.err
    assert said.json["backends"][0]["engines"][0]["running"] is None
