"""What is sent to whom, over which kind of address, and how often: real servers, which say what they were asked."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from diag.errors import BadInput
from diag.health import checking
from diag.health.budget import Budget
from diag.health.checking import Checked, Checker, Settings
from diag.health.polling import MAX_BODY_BYTES, backend_of, rounds
from diag.health.probing import ask
from diag.repro.http_post import Wire
from tests.health.toy import Toy, always
from tests.live.run import llmdiag
from tests.repro.endpoint import Response, Server, answer, serving

FAST = Settings(reads=3, interval_s=0.02, timeout_s=5.0, probe_timeout_s=5.0, budget=Budget(probe_s=5.0))


def check(*servers: Server, settings: Settings = FAST, proxies: tuple[Server, ...] = (), **keys: str) -> list[Checked]:
    backends = [backend_of(server.url, **keys) for server in servers] + [backend_of(server.url, proxy=True, **keys) for server in proxies]
    return Checker(Wire(max_body_bytes=MAX_BODY_BYTES), backends, settings, threading.Event()).once()


def paths(server: Server) -> list[str]:
    return [path for path, _, _ in server.asked]


@pytest.mark.parametrize(("given", "url"), [
    ("http://127.0.0.1:8000", "http://127.0.0.1:8000/metrics"),
    ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/metrics"),
    ("localhost:8000", "http://localhost:8000/metrics"),
    ("http://engine/v1", "http://engine:80/metrics"),
    ("https://[::1]:8443/metrics", "https://[::1]:8443/metrics"),
    ("http://triton:8002/prometheus/metrics", "http://triton:8002/prometheus/metrics"),
    ("unix:/run/vllm.sock", "unix:/run/vllm.sock/metrics"),
    ("unix:///run/vllm.sock", "unix:/run/vllm.sock/metrics"),
])
def test_what_a_target_means(given: str, url: str) -> None:
    assert backend_of(given).url == url


@pytest.mark.parametrize("given", ["ftp://a", "http://", "http://user:secret@a:1", "http://a:99999", "http://a/?x=1", "unix:relative", "unix:/" + "a" * 200])
def test_what_is_no_target(given: str) -> None:
    with pytest.raises(BadInput) as caught:
        backend_of(given)
    assert "secret" not in str(caught.value)


def test_a_token_is_not_shown() -> None:
    assert "sk-secret" not in repr(backend_of("http://a", "sk-secret"))


def test_a_busy_engine_gets_nothing_but_reads() -> None:
    with serving(Toy(running=12, waiting=3, per_read=40)) as server:
        (found,) = check(server)
    assert found.verdict.state == "progressing", found
    assert paths(server) == ["/metrics"] * 3
    assert found.verdict.engines[0].tokens_per_s and found.verdict.engines[0].tokens_per_s > 0


def test_a_busy_engine_that_shows_nothing_gets_nothing_but_reads_either() -> None:
    with serving(Toy(running=12)) as server:
        (found,) = check(server)
    assert (found.verdict.state, found.verdict.exit) == ("busy-unproven", 3)
    assert paths(server) == ["/metrics"] * 3


def test_an_idle_engine_is_asked_one_short_question() -> None:
    with serving(Toy()) as server:
        (found,) = check(server)
    assert found.verdict.state == "idle-proven", found
    assert paths(server) == ["/metrics"] * 3 + ["/v1/models", "/v1/completions"]
    assert server.questions == [{"model": "toy", "prompt": "1", "max_tokens": 1, "temperature": 0}]
    assert found.verdict.probe is not None
    assert found.verdict.probe.ok
    assert "answered in" in found.asked


def test_no_probe_means_none() -> None:
    with serving(Toy()) as server:
        (found,) = check(server, settings=Settings(interval_s=0.02, probe=False))
    assert (found.verdict.state, found.verdict.exit, found.verdict.probe) == ("idle-unproven", 0, None)
    assert set(paths(server)) == {"/metrics"}


def test_a_hang_behind_a_gauge_that_says_0_is_found_by_the_question() -> None:
    toy = Toy(answers=False)
    settings = Settings(interval_s=0.02, probe_timeout_s=0.3, budget=Budget(floor_s=0.3, probe_s=0.3))
    with serving(toy) as server:
        (found,) = check(server, settings=settings)
        toy.released.set()
    assert (found.verdict.state, found.verdict.exit) == ("stalled", 1), found
    assert len(server.questions) == 1
    assert paths(server)[-2:] == ["/metrics"] * 2, "it is looked at again before anything is said"


def test_a_short_patience_with_a_question_is_no_short_proof() -> None:
    toy = Toy(answers=False)
    with serving(toy) as server:
        said = llmdiag("health", server.url, "--interval", "0.1", "--probe-timeout", "0.3")
        toy.released.set()
    assert (said.code, said.out.split()[0]) == (3, "BUSY-UNPROVEN"), said.out
    assert "for 0.3 s; that is proof after 300 s" in said.out
    assert "--probe-timeout 0.3" in said.err and "--floor (300 s)" in said.err, said.err


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_an_answer_with_an_error_is_no_silence(status: int) -> None:
    def handler(path, body, headers):  # type: ignore[no-untyped-def]
        return Toy()(path, body, headers) if path in ("/metrics", "/v1/models") else Response(status)

    with serving(handler) as server:
        said = llmdiag("health", server.url, "--interval", "0.1", "--floor", "0.1", "--patience", "1")
    assert (said.code, said.out.split()[0]) == (0, "IDLE-UNPROVEN"), said.out
    assert f"with HTTP {status}" in said.out.splitlines()[0]


def test_a_question_that_met_a_burst_of_work_is_no_proof() -> None:
    class Burst(Toy):
        def __call__(self, path, body, headers):  # type: ignore[no-untyped-def]
            if path == "/v1/completions":
                self.running, self.waiting, self.per_read = 12, 5, 40.0
            return super().__call__(path, body, headers)

    toy = Burst(answers=False)
    with serving(toy) as server:
        (found,) = check(server, settings=Settings(interval_s=0.02, probe_timeout_s=0.3, budget=Budget(floor_s=0.3, probe_s=0.3)))
        toy.released.set()
    assert (found.verdict.state, found.verdict.exit) == ("progressing", 0), found


def test_an_answer_that_came_late_may_have_stood_behind_a_step_that_no_gauge_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long prefill in one step: gauges of 0 until it is over, and then its tokens are counted at once."""

    class Behind(Toy):
        def __call__(self, path, body, headers):  # type: ignore[no-untyped-def]
            if path == "/v1/completions":
                self.tokens += 59_000
            return super().__call__(path, body, headers)

    monkeypatch.setattr(checking, "SLOW_ANSWER_S", 0.0)
    with serving(Behind()) as server:
        (found,) = check(server)
    assert (found.verdict.state, found.verdict.exit) == ("progressing", 0), found
    assert paths(server)[-2:] == ["/metrics"] * 2


def test_a_chat_model_is_asked_in_its_way() -> None:
    def handler(path, body, headers):  # type: ignore[no-untyped-def]
        return Response(404) if path == "/v1/completions" else Toy()(path, body, headers)

    with serving(handler) as server:
        (found,) = check(server)
    assert found.verdict.state == "idle-proven", found
    assert paths(server)[-2:] == ["/v1/completions", "/v1/chat/completions"]
    assert server.questions[-1]["max_tokens"] == 1


@pytest.mark.parametrize(("response", "ok", "says"), [
    (answer(choices=[]), True, "answered in"),
    (answer(object="error"), None, "with no completion"),
    (Response(500), None, "HTTP 500"),
    (Response(503), None, "HTTP 503: that proves nothing"),
    (Response(429), None, "HTTP 429"),
    (Response(401), None, "HTTP 401"),
    (Response(raw=b""), False, "cut off"),
    (Response(raw=b"SSH-2.0\r\n"), None, "came to nothing"),
    (Response(200, b"{" * 100_000), None, "with no completion"),
])  # fmt: skip
def test_only_a_question_that_reached_the_engine_counts_against_it(response: Response, ok: bool | None, says: str) -> None:
    with serving(always(response)) as server:
        said = ask(Wire(), backend_of(server.url), "toy", 5.0)
    assert (said.sent, said.ok) == (True, ok), said
    assert says in said.says


@pytest.mark.parametrize("models", [Response(404), Response(200, b"{}"), answer(data=[{"id": 7}, 3, {"id": "x" * 500}]), Response(raw=b"")])
def test_without_a_model_there_is_no_question(models: Response) -> None:
    with serving(lambda path, body, headers: models if path == "/v1/models" else Toy()(path, body, headers)) as server:
        (found,) = check(server)
    assert (found.verdict.state, found.verdict.exit) == ("idle-unproven", 0), found
    assert server.questions == []
    assert "--model" in found.asked


def test_a_proxy_is_asked_which_models_it_lists_and_nothing_else() -> None:
    with serving(Toy(running=1)) as proxy:
        (found,) = check(proxies=(proxy,))
    assert paths(proxy) == ["/v1/models"]
    assert (found.source, found.verdict.exit) == ("proxy", 0)
    assert "lists 1 model;" in found.verdict.reason


def test_a_proxy_that_is_down_or_lists_nothing_proves_nothing() -> None:
    with serving(always(Response(502))) as proxy:
        (found,) = check(proxies=(proxy,))
    assert (found.verdict.state, found.verdict.exit) == ("unreadable", 3)


def test_backends_are_read_at_once_and_in_order() -> None:
    """Each answers only when all have been asked."""
    together = threading.Barrier(4)
    toys = [Toy(running=number + 1, per_read=1) for number in range(4)]

    def handler(toy: Toy):  # type: ignore[no-untyped-def]
        def handle(path, body, headers):  # type: ignore[no-untyped-def]
            together.wait(20)
            return toy(path, body, headers)

        return handle

    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(handler(toy))) for toy in toys]
        found = check(*servers, settings=Settings(interval_s=0.02, timeout_s=25))
    assert [item.verdict.engines[0].running for item in found] == [1, 2, 3, 4]
    assert [item.url for item in found] == [f"{server.url}/metrics" for server in servers]


def test_one_that_is_silent_does_not_hold_up_the_others() -> None:
    with serving(always(Response(wait_for=threading.Event()))) as silent, serving(Toy(running=1, per_read=5)) as good:
        found = check(silent, good, settings=Settings(interval_s=0.02, timeout_s=0.3))
    assert [item.verdict.state for item in found] == ["unreachable", "progressing"]


def test_patience_goes_on_until_something_is_proved() -> None:
    budget = Budget(floor_s=0.4)
    with serving(Toy(running=2)) as stuck, serving(Toy(running=2, per_read=3)) as good:
        (impatient,) = check(stuck, settings=Settings(interval_s=0.02, budget=budget))
        before = len(stuck.asked)
        found = check(stuck, good, settings=Settings(interval_s=0.02, patience_s=20, budget=budget))
        (quick,) = check(good, settings=Settings(interval_s=0.02, patience_s=20, budget=budget))
    assert impatient.verdict.state == "busy-unproven"
    assert [item.verdict.state for item in found] == ["stalled", "progressing"]
    assert len(stuck.asked) - before > 3
    assert len(good.asked) == len(stuck.asked) - before + 3, "one that progresses is read three times"
    assert quick.verdict.state == "progressing"


def test_patience_has_an_end() -> None:
    with serving(Toy(running=2)) as stuck:
        (found,) = check(stuck, settings=Settings(interval_s=0.02, patience_s=0.2))
    assert found.verdict.state == "busy-unproven"
    assert len(stuck.asked) > 3


def test_a_token_goes_to_every_path() -> None:
    def handler(path, body, headers):  # type: ignore[no-untyped-def]
        return Toy()(path, body, headers) if headers.get("authorization") == "Bearer sk-abc" else Response(401)

    with serving(handler) as server:
        (found,) = check(server, token="sk-abc")
    assert found.verdict.state == "idle-proven", found


class Plain(BaseHTTPRequestHandler):
    toy = Toy(running=2, per_read=7)

    def do_GET(self) -> None:
        body = self.toy(self.path, {}, {}).body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_unix_socket(tmp_path: Path) -> None:
    class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
            return super().get_request()[0], ("here", 0)

    path = tmp_path / "e.sock"
    with running(Unix(str(path), Plain)):
        (found,) = check(Server(f"unix:{path}"))
    assert found.verdict.state == "progressing", found
    assert found.url == f"unix:{path}/metrics"


def test_ipv6() -> None:
    class Six(ThreadingHTTPServer):
        address_family = socket.AF_INET6

    try:
        server = Six(("::1", 0), Plain)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with running(server):
        (found,) = check(Server(f"http://[::1]:{server.server_address[1]}"))
    assert found.verdict.state == "progressing", found


def test_rounds_end_when_they_are_stopped() -> None:
    stop = threading.Event()
    with serving(Toy(running=1)) as server:
        seen = 0
        for looks in rounds(Wire(), [backend_of(server.url)], interval_s=0.01, timeout_s=5, stop=stop):
            seen += len(looks)
            if seen == 3:
                stop.set()
    assert seen == 3
    assert len(server.asked) == 3


def test_a_watched_idle_engine_is_not_asked_at_every_round() -> None:
    stop = threading.Event()
    with serving(Toy()) as server:
        checker = Checker(Wire(), [backend_of(server.url)], FAST, stop)
        for number, found in enumerate(checker.watching()):
            if number > 5 and found[0].verdict.state == "idle-proven":
                break
    assert len(server.questions) == 1
