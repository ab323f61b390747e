"""`llmdiag repro-prefix` as a person runs it: exit codes, streams, files, Ctrl-C."""

import json
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from diag.collectors import repro as collector
from diag.evidence import open_paths
from diag.report import repro as report
from tests.cache.cli import at_terminal, ended, run, start, without_control_codes
from tests.live.run import Said
from tests.repro.endpoint import PROMPTS, Engine, Handler, Response, answer, good_answer, prompt_of, serving

SCHEMA = json.loads((Path(report.__file__).parent / "repro.schema.json").read_text())
QUICK = ("--rate", "10000", "--fills", "2", "--every", "3", "--control", "5", "--limit", "300")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in PROMPTS))
    return path


def repro(handler: Handler, prompts: Path, *args: str, **env: str) -> Said:
    with serving(handler) as server:
        return run("repro-prefix", server.url, str(prompts), *QUICK, *args, cwd=prompts.parent, **env)


def naming(engine: Engine) -> Handler:
    """It names its answers after what it was sent, as vLLM does."""

    def handler(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        found = engine(path, body, headers)
        return Response(found.status, json.dumps({"id": f"cmpl-{headers['x-request-id']}", **json.loads(found.body)}).encode()) if "completions" in path else found

    return handler


def test_reproduced(prompts: Path) -> None:
    output = prompts.with_name("repro.json")
    said = repro(naming(Engine(bug=True)), prompts, "-o", str(output), COLUMNS="80")
    assert said.code == 1, said
    lines = said.out.splitlines()
    assert lines[0].startswith("REPRODUCED: prompt ") and "right with the cache bypassed" in lines[0]
    row = next(line for line in lines if line.startswith("pressure") and "%" not in line)
    assert "E" in row and set(row.split()[1]) <= set(".~DECPG!")
    assert any(line.strip().startswith("good: ") for line in lines) and any(line.strip() == "bad:  (empty)" for line in lines)
    for note in ("failures: wrong, wrong again when repeated, and right with the cache bypassed", "sticky: how many repetitions of the first failure"):
        assert any(line.startswith(note) for line in lines), lines
    assert "~ different, but noise" in said.out
    document = json.loads(output.read_text())
    jsonschema.validate(document, SCHEMA)
    assert document["verdict"] == "reproduced"
    sent = [item["sent"] for item in document["trials"]]
    run_name = sent[0].rpartition("-")[0]
    assert sent == [f"{run_name}-{number}" for number in range(1, len(sent) + 1)], "one a question, in order"
    assert [item["request"] for item in document["trials"]] == [f"cmpl-{name}" for name in sent], "as the engine calls it"
    first = next(item for item in document["trials"] if item["reproduced"])
    assert [line.strip() for line in lines if "grep" in line] == [f"in the engine's log: grep -nwF -e {first['sent']} ENGINE_LOG"]
    assert document["statuses"] == {"200": len(document["trials"])}
    assert [item["kind"] for item in document["prompts"]] == ["completions", "chat"]


def test_json_is_all_there_is_on_stdout(prompts: Path) -> None:
    said = repro(Engine(), prompts, "-f", "json", "--no-answers")
    assert said.code == 0, said
    document = said.json
    jsonschema.validate(document, SCHEMA)
    assert (document["verdict"], document["exercised"], document["healed_by_bypass"]) == ("no-failure", True, None)
    for item in PROMPTS:
        assert good_answer(prompt_of(item).split())[:20] not in said.out
        assert prompt_of(item)[:30] not in said.out, "text of a prompt is in the output"


def test_not_exercised(prompts: Path) -> None:
    said = repro(Engine(bug=True, blocks=5000), prompts, "--limit", "40")
    assert said.code == 3
    assert said.out.startswith("NOT EXERCISED, so no failure means nothing: ")
    assert "--limit" in said.out


def died_after(count: int) -> Handler:
    engine, left = Engine(), iter(range(count))

    def handler(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        return engine(path, body, headers) if "completions" not in path or next(left, None) is not None else answer(500, error="EngineDeadError")

    return handler


def test_a_dead_endpoint_is_said_with_what_was_seen(prompts: Path) -> None:
    output = prompts.with_name("repro.json")
    said = repro(died_after(30), prompts, "-o", str(output))
    assert said.code == 2
    assert said.out.startswith("THE ENDPOINT DIED: 5 requests in a row had no answer, the last: 500, EngineDeadError")
    document = json.loads(output.read_text())
    jsonschema.validate(document, SCHEMA)
    assert document["statuses"] == {"200": 30, "500": 5}
    assert document["ended"] == "endpoint-dead"


@pytest.mark.parametrize(("respond", "says"), [
    (lambda path: Response(200, b"<!doctype html><p>hi"), "answers with HTML"),
    (lambda path: answer(401), "LLMDIAG_API_KEY"),
    (lambda path: Response(302, b"", {"Location": "http://127.0.0.1:1/login"}), "redirects to http://127.0.0.1:1/login, which is not followed"),
    (lambda path: answer(data=[]), "lists no model"),
    (lambda path: answer(404, error="Not Found"), "/v1/models is not there (status 404): this is no OpenAI-compatible endpoint"),
    (lambda path: answer(data=[{"id": "m"}]) if path == "/v1/models" else answer(404, error="no chat here"), "no chat here"),
    (lambda path: answer(data=[{"id": "m"}]) if path == "/v1/models" else answer(400, error="context too long"), "the prompt of line 1 gets no answer: 400, context too long"),
])  # fmt: skip
def test_what_cannot_be_used_is_an_error_of_two_lines(prompts: Path, respond: Callable[[str], Response], says: str) -> None:
    output = prompts.with_name("repro.json")
    said = repro(lambda path, body, headers: respond(path), prompts, "-o", str(output))
    assert said.code == 2
    assert said.out == ""
    assert says in said.err and said.err.startswith("error: ")
    assert not output.exists()
    assert sorted(path.name for path in prompts.parent.iterdir()) == ["prompts.jsonl"]


def test_bad_input_is_told_before_anything_is_sent(prompts: Path) -> None:
    bad = prompts.with_name("bad.jsonl")
    bad.write_text('{"prompt": "a"}\n{"prompt": 5}\n')
    with serving(Engine()) as server:
        for args, says in (
            ((server.url, str(bad)), "bad.jsonl:2: prompt must be"),
            ((server.url, "none.jsonl"), "cannot read none.jsonl"),
            (("http://user:pw@h", str(prompts)), "the URL holds credentials"),
            ((f"{server.url}/v1/completions", str(prompts)), "http://HOST:PORT, or with /v1"),
            ((server.url, str(prompts), "-o", "missing/folder/x.json"), "cannot write missing/folder/x.json"),
            ((server.url, str(prompts), "--rate", "0"), "--rate"),
        ):
            said = run("repro-prefix", *args, cwd=prompts.parent)
            assert said.code == 2, said
            assert says in said.err and "pw" not in said.err
        assert server.asked == []


def test_a_dry_run_shows_variants_and_sends_nothing(prompts: Path) -> None:
    with serving(Engine()) as server:
        said = run("repro-prefix", server.url, str(prompts), "--dry-run", cwd=prompts.parent)
        document = run("repro-prefix", server.url, str(prompts), "--dry-run", "-f", "json", cwd=prompts.parent).json
        assert server.asked == []
    assert said.code == 0
    assert [line.split(",")[0] for line in said.out.splitlines()] == [f"{arm} {number}" for arm in ("control", "pressure") for number in range(6)]
    assert document["schema"] == "llmdiag.repro_plan/1" and len(document["variants"]) == 12


def test_the_token_is_sent_and_printed_nowhere(prompts: Path) -> None:
    token, engine, seen = "sk-0123456789", Engine(), set()

    def closed(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        seen.add(headers.get("authorization"))
        found = engine(path, body, headers)
        return Response(found.status, found.body.replace(b"The answer is", f"The key {token} is".encode()), found.headers)

    file = prompts.with_name("key")
    file.write_text(f"{token}\n")
    for args, env in (((), {"LLMDIAG_API_KEY": token}), (("--api-key-file", str(file)), {})):
        output = prompts.with_name("repro.json")
        said = repro(closed, prompts, "-o", str(output), "--limit", "20", *args, **env)
        assert said.code == 3, said
        assert seen == {f"Bearer {token}"}
        seen.clear()
        assert token not in said.out + said.err + output.read_text()
        assert "The key *** is" in output.read_text()
    said = run("repro-prefix", "http://h", str(prompts), cwd=prompts.parent, LLMDIAG_API_KEY="a\nb")
    assert said.code == 2 and "LLMDIAG_API_KEY" in said.err


@pytest.mark.parametrize(("bug", "number"), [(False, signal.SIGINT), (True, signal.SIGINT), (True, signal.SIGTERM)])
def test_a_wish_to_stop_writes_what_there_is_and_exits_by_it(prompts: Path, bug: bool, number: signal.Signals) -> None:
    """While an answer is awaited that never comes."""
    engine, hold, here = Engine(bug=bug), threading.Event(), threading.Event()
    output = prompts.with_name("repro.json")
    count, bad = iter(range(10_000)), iter(range(10_000))

    def stuck(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        found = engine(path, body, headers)
        if "completions" not in path:
            return found
        is_bad = b'"text": ""' in found.body or b'"content": ""' in found.body
        if next(count) < 30 if not bug else not (is_bad and next(bad) >= 3):  # the third is asked when the first was put to the test
            return found
        here.set()
        return Response(200, found.body, wait_for=hold)

    with serving(stuck) as server:
        process = start("repro-prefix", server.url, str(prompts), *QUICK, "-o", str(output), cwd=prompts.parent)
        assert here.wait(30), "it never got so far"
        process.send_signal(number)
        said = ended(process)
        hold.set()
    document = json.loads(output.read_text())
    jsonschema.validate(document, SCHEMA)
    assert document["ended"] == "interrupted", document["ended_because"]
    assert (said.code, document["verdict"]) == ((1, "reproduced") if bug else (3, "not-exercised")), said
    assert "stopped by Ctrl-C" in said.out


def test_a_person_sees_progress(prompts: Path) -> None:
    with serving(Engine()) as server:
        code, screen = at_terminal("repro-prefix", server.url, str(prompts), *QUICK, cwd=prompts.parent)
    assert code == 0
    shown = without_control_codes(screen)
    assert "repro: pressure arm, " in shown and " left, " in shown, shown
    assert "NO FAILURE: " in shown


def test_answers_that_would_move_the_cursor_are_harmless(prompts: Path) -> None:
    said = repro(Engine(bug=True, bad="\x1b[2J\x1b]0;gone\x07 boo"), prompts)
    assert said.code == 1, said
    assert "\x1b" not in said.out and "\\x1b[2J" in said.out


def test_the_document_is_evidence(prompts: Path) -> None:
    output = prompts.with_name("repro.json")
    repro(Engine(bug=True), prompts, "-o", str(output))
    document = json.loads(output.read_text())
    evidence = open_paths([output])
    (found,), _ = evidence.rows("SELECT * FROM prefix_runs", "test", 10)
    first = next(item for item in document["trials"] if item["reproduced"])
    assert (found["verdict"], found["bypass_by"], found["family"]) == ("reproduced", "cache_salt", "vllm")
    assert (found["first_arm"], found["first_ordinal"]) == ("pressure", first["ordinal"])
    assert found["requests"] == len(document["trials"]) and found["failures"] == sum(bool(item["reproduced"]) for item in document["trials"])
    trials, _ = evidence.rows("SELECT * FROM prefix_trials ORDER BY ts, ordinal", "test", 1000)
    assert len(trials) == len(document["trials"])
    assert {row["source"] for row in trials} == {f"repro.json#trials[{number}]" for number in range(len(trials))}
    failed = [row for row in trials if row["reproduced"]]
    assert failed and all(row["hit"] and row["cached_tokens"] > 0 and not row["bypass"] for row in failed)
    status = {item.table_name: item.status for item in evidence.collected if item.collector == collector.NAME}
    assert status == {"prefix_runs": "ok", "prefix_trials": "ok", "prefix_prompts": "ok"}
    assert [(row["request"], row["sent"], row["excerpt"]) for row in trials] == [(item["request"], item["sent"], item["excerpt"]) for item in document["trials"]]
    assert found["because"] == "; ".join(document["because"])
    asked, _ = evidence.rows("SELECT prompt, line, stable, good FROM prefix_prompts ORDER BY prompt", "test", 10)
    assert asked == [{"prompt": item["index"], "line": item["line"], "stable": True, "good": item["good"]} for item in document["prompts"]]
    assert all(row["good"].startswith("The answer is ") for row in asked)


@pytest.mark.parametrize("text", ['{"schema": "llmdiag.repro/1"}', '{"schema": "llmdiag.repro/1", "trials": [3]}', '{"schema": "llmdiag.repro/1", "trials": ['])
def test_a_damaged_document_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "repro.json").write_text(text)
    evidence = open_paths([tmp_path])
    said = [item for item in evidence.collected if item.collector == "repro" and item.status != "ok"]
    assert said and all("repro.json" in str(item.reason) for item in said), evidence.collected


def test_nonsense_in_a_document_costs_its_values_only(tmp_path: Path) -> None:
    trials = [{"arm": 5, "ordinal": "x", "ts": 1e300, "cached_tokens": [1], "reproduced": "yes", "prompt_tokens": 10**30}]
    (tmp_path / "repro.json").write_text(json.dumps({"schema": "llmdiag.repro/1", "trials": trials, "arms": [None], "cache": 3, "started_at": "now"}))
    rows, _ = open_paths([tmp_path]).rows("SELECT arm, ordinal, ts, cached_tokens, reproduced, prompt_tokens FROM prefix_trials", "test", 10)
    assert rows == [{"arm": "5", "ordinal": None, "ts": None, "cached_tokens": None, "reproduced": None, "prompt_tokens": None}]
