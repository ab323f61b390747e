"""What HTTP can do wrong: slow, broken, busy, redirecting, dead and lying endpoints end in a sentence, in time."""

import socket
import threading
import time
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from diag.errors import BadInput, CannotConnect, Garbled, LlmdiagError
from diag.repro.client import Endpoint, Spoken, Trouble
from diag.repro.http_post import Place, Wire, place_of
from diag.repro.prompts import Prompt
from diag.repro.sending import EndpointDead, Sender, Stopped
from tests.repro.endpoint import Engine, Handler, Response, answer, said, serving

ASK = Prompt(1, "one two three four five")
CHAT = Prompt(2, messages=({"role": "user", "content": "one two three"},))
HTML = b"<!DOCTYPE html><html><head><title>Console</title></head><body><h1>Welcome</h1></body></html>"


def asked(handler: Handler, *, timeout_s: float = 10, token: str | None = None) -> Spoken | Trouble:
    with serving(handler) as server:
        return Endpoint(place_of(server.url), Wire(), timeout_s, token).ask(ASK, {"model": "m"})


def always(response: Response) -> Handler:
    return lambda path, body, headers: response


@pytest.mark.parametrize(("response", "label", "says"), [
    (answer(500, error={"message": "EngineCore died"}), "500", "EngineCore died"),
    (answer(400, message="maximum context length is 2048"), "400", "maximum context length is 2048"),
    (answer(422, detail=[{"msg": "extra field"}]), "422", "extra field"),
    (Response(502, b"<html><body><h1>Bad   Gateway</h1></body></html>"), "502", "Bad Gateway"),
    (Response(503, b""), "503", "status 503"),
    (Response(raw=b""), "reset", "closed without an answer"),
    (Response(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"), "reset", "closed in the middle"),
    (Response(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "reset", "closed in the middle"),
    (Response(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "reset", "closed in the middle"),
    (Response(raw=b"SSH-2.0-OpenSSH_9.2\r\n"), "garbled", "no HTTP"),
    (Response(raw=b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n"), "garbled", "headers"),
])  # fmt: skip
def test_no_answer_is_told_apart(response: Response, label: str, says: str) -> None:
    found = asked(always(response))
    assert isinstance(found, Trouble)
    assert found.label == label, found
    assert says in found.says, found


@pytest.mark.parametrize(("response", "error", "says"), [
    (Response(200, HTML), Garbled, "answers with HTML"),
    (Response(200, b"hello"), Garbled, "answers with no JSON"),
    (Response(200, b""), Garbled, "answers with nothing"),
    (answer(object="list"), Garbled, "without choices"),
    (Response(200, b"[1]"), Garbled, "no object"),
    (Response(200, b"[" * 200_000), Garbled, "no JSON"),
    (Response(307, b"", {"Location": "https://elsewhere.example/v1?key=abc"}), CannotConnect, "redirects to https://elsewhere.example/v1, which is not followed"),
    (answer(401), BadInput, "wants to know who asks"), (answer(403), BadInput, "wants to know who asks"),
    (answer(404, error={"message": "The model `x` does not exist."}), BadInput, "The model `x` does not exist."),
])  # fmt: skip
def test_what_no_further_request_would_change_is_an_error(response: Response, error: type[LlmdiagError], says: str) -> None:
    with pytest.raises(error) as raised:
        asked(always(response))
    assert says in raised.value.message
    assert raised.value.hint


MODELS = answer(data=[{"id": name} for name in ("qwen3", "qwen3-lora", "a", "b", "c", "d")])


@pytest.mark.parametrize(("response", "says"), [
    (answer(404, error={"message": "The model `m` does not exist.", "type": "NotFoundError"}), "The model `m` does not exist."),
    (answer(404, object="error", message="The model `m` does not exist."), "The model `m` does not exist."),
    (answer(400, error={"message": "model m not found, available: none"}), "model m not found"),
    (answer(422, detail="Unknown model: m"), "Unknown model: m"),
])  # fmt: skip
def test_a_model_that_is_not_there_is_told_with_those_that_are(response: Response, says: str) -> None:
    with pytest.raises(BadInput) as raised:
        asked(lambda path, body, headers: MODELS if path == "/v1/models" else response)
    assert f"does not have the model m: {says}" in raised.value.message
    assert raised.value.hint == "name another one with --model; it serves qwen3, qwen3-lora, a, b, c and 1 more"


def test_a_refusal_of_another_kind_is_not_taken_for_a_missing_model() -> None:
    found = asked(always(answer(400, error={"message": "This model's maximum context length is 2048 tokens"})))
    assert isinstance(found, Trouble) and found.label == "400"


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_path_that_is_not_there_says_which_prompts_want_another(status: int) -> None:
    page = Response(status, b"<html><head><title>Error</title></head><body><h1>Unsupported method</h1></body></html>")
    for prompt, says in ((ASK, 'an endpoint for chats only wants lines with "messages"'), (CHAT, 'an endpoint without chats wants lines with "prompt"')):
        with serving(always(page)) as server, pytest.raises(BadInput, match=f"is not there .status {status}.: Unsupported method\n") as raised:
            Endpoint(place_of(server.url), Wire(), 5).ask(prompt, {})
        assert says in str(raised.value.hint)


@pytest.mark.parametrize(("token", "says"), [(None, "wants to know who asks"), ("s3cret", "does not accept the token")])
def test_a_refused_token_is_told_from_a_missing_one(token: str | None, says: str) -> None:
    with pytest.raises(BadInput, match=says) as raised:
        asked(always(answer(401, error="Unauthorized")), token=token)
    assert "s3cret" not in f"{raised.value} {raised.value.hint}" and "LLMDIAG_API_KEY" in str(raised.value.hint)


def test_a_plain_web_server_is_no_endpoint(tmp_path: Path) -> None:
    """The one that comes with Python, as a person would have it on the wrong port."""
    (tmp_path / "index.html").write_text("<h1>hello</h1>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        endpoint = Endpoint(place_of(f"http://127.0.0.1:{server.server_port}"), Wire(), 5)
        with pytest.raises(BadInput, match="this is no OpenAI-compatible endpoint"):
            endpoint.models()
        with pytest.raises(BadInput, match=r"/v1/completions is not there \(status 501\)"):
            endpoint.ask(ASK, {})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize(("body", "headers", "request_id"), [
    ({"id": "cmpl-49"}, {}, "cmpl-49"),
    ({"id": "cmpl-49"}, {"X-Request-Id": "gateway-1"}, "cmpl-49"),
    ({}, {"X-Request-Id": "gateway-1"}, "gateway-1"),
    ({}, {}, "llmdiag-ab-1"),
    ({"id": 49}, {}, "llmdiag-ab-1"), ({"id": ""}, {}, "llmdiag-ab-1"), ({"id": "two words"}, {}, "llmdiag-ab-1"), ({"id": "\x1b[31m"}, {}, "llmdiag-ab-1"),
    ({"id": "x" * 201}, {}, "llmdiag-ab-1"),
])  # fmt: skip
def test_a_question_bears_an_id_and_keeps_that_of_the_engine(body: dict[str, Any], headers: dict[str, str], request_id: str) -> None:
    good = answer(choices=[{"text": "ok"}], **body)
    with serving(always(Response(good.status, good.body, headers))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, Clock(), run="ab")
        found = sender.ask(ASK)
        sender.ask(CHAT)
    assert (found.request, found.sent) == (request_id, "llmdiag-ab-1")
    assert [sent["x-request-id"] for _, _, sent in server.asked] == ["llmdiag-ab-1", "llmdiag-ab-2"]


def test_a_question_without_an_answer_keeps_the_id_it_was_sent_with() -> None:
    with serving(scripted(answer(500, error="boom"), Response(raw=b""), said("ok", {}), Response(200, HTML))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, Clock(), run="ab")
        found = [sender.ask(ASK) for _ in range(4)]
    assert [(item.request, item.sent) for item in found] == [(f"llmdiag-ab-{n}", f"llmdiag-ab-{n}") for n in range(1, 5)]


def test_each_run_has_a_name_of_its_own() -> None:
    endpoint = Endpoint(Place(False, "127.0.0.1", 1), Wire(), 5)
    names = {Sender(endpoint, {}, 1, Clock()).run for _ in range(8)}
    assert len(names) == 8 and all(len(name) == 8 for name in names)


def test_nobody_listens_and_no_such_host() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refused = Endpoint(Place(False, "127.0.0.1", free.getsockname()[1]), Wire(), 5).ask(ASK, {})
    assert isinstance(refused, Trouble) and (refused.label, "refused" in refused.says) == ("refused", True)
    nowhere = Endpoint(place_of("http://no-such-host.invalid:1"), Wire(), 5).ask(ASK, {})
    assert isinstance(nowhere, Trouble) and nowhere.label == "refused"


def test_plain_text_on_a_tls_port_and_the_other_way_round() -> None:
    with serving(Engine()) as server:
        place = place_of(server.url)
        with pytest.raises(CannotConnect, match="models"):
            Endpoint(Place(True, place.host, place.port), Wire(), 5).models()


@pytest.mark.parametrize("response", [Response(200, b"{}", wait_for=threading.Event()), Response(200, b" " * 5000, trickle_s=0.01)], ids=["silent", "trickle"])
def test_a_deadline_holds_for_all_of_an_answer(response: Response) -> None:
    try:
        found = asked(always(response), timeout_s=0.3)
    finally:
        if response.wait_for is not None:
            response.wait_for.set()
    assert isinstance(found, Trouble) and found.label == "timeout"


def test_stopping_ends_what_is_under_way() -> None:
    silent = Response(200, b"{}", wait_for=threading.Event())
    wire, here = Wire(), threading.Event()

    def handler(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        here.set()
        return silent

    with serving(handler) as server:
        endpoint = Endpoint(place_of(server.url), wire, 60)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(endpoint.ask(ASK, {})))
        thread.start()
        assert here.wait(10)
        wire.stop()
        thread.join(10)
        assert [item.label for item in found] == ["stopped"]
        assert endpoint.ask(ASK, {}).label == "stopped"  # type: ignore[union-attr]
        assert silent.wait_for is not None
        silent.wait_for.set()


def test_a_token_goes_to_its_server_only_and_is_never_shown() -> None:
    token = "sk-very-secret-token"

    def echo(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        return answer(500, error={"message": f"bad key {headers.get('authorization')}"}) if "completions" in path else Response(200, b"process_x 1\n")

    with serving(echo) as server, serving(echo) as other:
        endpoint = Endpoint(place_of(server.url), Wire(), 5, token, place_of(other.url))
        found = endpoint.ask(ASK, {})
        endpoint.counters()
    assert server.asked[0][2]["authorization"] == f"Bearer {token}"
    assert other.asked and all("authorization" not in headers for _, _, headers in other.asked)
    assert isinstance(found, Trouble) and found.says == "bad key Bearer ***"
    assert token not in repr(endpoint)


@pytest.mark.parametrize(("url", "expected"), [
    ("http://h:8000", Place(False, "h", 8000)), ("h:8000/", Place(False, "h", 8000)), ("https://h/v1/", Place(True, "h", 443)),
    ("http://[::1]:80/a/b/v1", Place(False, "::1", 80, "/a/b")), ("http://h", Place(False, "h", 80)),
])  # fmt: skip
def test_addresses(url: str, expected: Place) -> None:
    assert place_of(url) == expected


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h:99999", "http://u:secretpw@h", "http://h?x=1", "http://h/\r\nX: y", "http://h/a b", "http://[::1", "http://hé"])
def test_no_addresses(url: str) -> None:
    with pytest.raises(BadInput) as error:
        place_of(url)
    assert error.value.hint and "secretpw" not in str(error.value)


def test_answers_of_both_apis_and_of_a_model_that_thinks_aloud() -> None:
    def chat(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        message = {"role": "assistant", "content": None, "reasoning_content": "Let me see"}
        return answer(choices=[{"message": message, "finish_reason": "length"}], usage={"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}})

    with serving(chat) as server:
        found = Endpoint(place_of(server.url), Wire(), 5).ask(Prompt(1, messages=({"role": "user", "content": "q"},)), {})
    assert server.asked[0][0] == "/v1/chat/completions"
    assert isinstance(found, Spoken)
    assert (found.answer.text, found.answer.finish, found.prompt_tokens, found.cached_tokens) == ("Let me see", "length", 9, 4)
    plain = asked(always(answer(choices=[{"text": 3}], usage="none")))
    assert isinstance(plain, Spoken) and (plain.answer.text, plain.prompt_tokens, plain.cached_tokens) == ("", None, None)


class Clock:
    """A stop that nobody presses; remembers what it was waited with."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        return False


def scripted(*responses: Response) -> Handler:
    """One after the other, the last for ever."""
    left = list(responses)
    return lambda path, body, headers: left.pop(0) if len(left) > 1 else left[0]


def busy(retry_after: str | None, status: int = 429) -> Response:
    return Response(status, b"{}", {} if retry_after is None else {"Retry-After": retry_after})


def test_told_to_come_back_later_it_does() -> None:
    clock, good = Clock(), said("ok", {})
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 30))
    with serving(scripted(busy("7"), busy(None), busy("9", 503), busy(later), busy("100000"), good)) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, clock)
        assert isinstance(sender.ask(ASK), Spoken)
    long = [wait for wait in clock.waits if wait > 0.5]
    assert long[0] == 7 and long[1] == 2 and long[2] == 9 and 25 < long[3] <= 30 and long[4] == 120
    assert dict(sender.statuses) == {"429": 4, "503": 1, "200": 1}


def test_a_queue_that_never_ends_counts_as_no_answer() -> None:
    clock = Clock()
    with serving(always(busy("0"))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, clock)
        found = sender.ask(ASK)
    assert isinstance(found, Trouble) and found.label == "429"
    assert sender.statuses["429"] == 6


def test_the_pace_is_kept() -> None:
    clock = Clock()
    with serving(always(said("ok", {}))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 0.5, clock)
        for _ in range(4):
            sender.ask(ASK)
    assert [round(wait) for wait in clock.waits] == [2, 4, 6], "at most one in two seconds: the clock of the test does not really wait"


def test_five_without_an_answer_and_it_is_dead() -> None:
    with serving(scripted(said("ok", {}), answer(500, error="boom"))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, Clock())
        for _ in range(5):
            sender.ask(ASK)
        with pytest.raises(EndpointDead, match="5 requests in a row had no answer, the last: 500, boom"):
            sender.ask(ASK)
    assert sender.statuses == {"200": 1, "500": 5}


def test_a_web_page_in_the_middle_is_counted_not_an_end() -> None:
    with serving(scripted(said("ok", {}), Response(200, HTML), said("ok", {}))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, Clock())
        found = [sender.ask(ASK) for _ in range(3)]
    assert [isinstance(item, Spoken) for item in found] == [True, False, True]
    assert sender.statuses == {"200": 2, "garbled": 1}


def test_requests_that_are_not_wanted_are_no_death_but_twenty_are_an_end() -> None:
    with serving(scripted(said("ok", {}), answer(400, message="too long"))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, Clock())
        for _ in range(20):
            sender.ask(ASK)
        with pytest.raises(EndpointDead, match="20 requests in a row were refused, the last: 400, too long"):
            sender.ask(ASK)


def test_a_wish_to_stop_is_heard_while_waiting() -> None:
    stop = threading.Event()
    with serving(always(busy("60"))) as server:
        sender = Sender(Endpoint(place_of(server.url), Wire(), 5), {}, 1e6, stop)
        threading.Timer(0.1, stop.set).start()
        with pytest.raises(Stopped):
            sender.ask(ASK)


def test_a_list_that_empties_by_reading_is_left_for_the_other_path() -> None:
    """trtllm-serve: /metrics is JSON, the counters are elsewhere; once found, only that is read."""
    def handler(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        return Response(200, b'[{"iter": 1}]' if path == "/metrics" else b"trtllm_prompt_cached_tokens_total 5\ntrtllm_prompt_tokens_total 9\n")

    with serving(handler) as server:
        found, path = Endpoint(place_of(f"{server.url}/v1"), Wire(), 5).counters()
    assert (found.family, found.hits, path) == ("trtllm", 5, "/prometheus/metrics")
    assert [path for path, _, _ in server.asked] == ["/metrics", "/prometheus/metrics"]
