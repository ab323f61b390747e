"""The second lab does what the incident did, over HTTP: right answers, then wrong ones that stay; its logs and dumps can be read."""

import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from diag.labs import Lab, start_lab
from diag.tensors.measure import content
from diag.tensors.opening import open_dump
from tests.live.prefix_lab import GOOD, PREFIX_LAB, PROMPTS, variant
from tests.live.run import llmdiag

pytestmark = [pytest.mark.live, pytest.mark.torch]

WAIT_S = 60.0
FORMATS = ["npy", "npz", "pt", "pt_legacy", "sglang", "sglang_hook", "msprobe", "atb"]


@contextlib.contextmanager
def lab_of(tmp_path: Path, *args: str) -> Iterator[Lab]:
    options = ("--lookup-log", str(tmp_path / "lookups.log"), "--dump-dir", str(tmp_path / "dumps"))
    with start_lab(PREFIX_LAB, *options, *args, log=tmp_path / "lab.log") as lab:
        yield lab


def post(lab: Lab, path: str, body: Mapping[str, object], status: int = 200) -> dict[str, Any]:
    answer = lab.post(json.dumps(body).encode(), path)
    assert answer.status == status, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


def ask(lab: Lab, prompt: str, **more: object) -> dict[str, Any]:
    return post(lab, "/v1/completions", {"prompt": prompt, "temperature": 0, **more})


def text_of(answer: Mapping[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


def test_the_endpoint_answers_like_an_openai_server(tmp_path: Path) -> None:
    with lab_of(tmp_path) as lab:
        assert lab.get("/health").status == 200
        (model,) = json.loads(lab.get("/v1/models").body)["data"]
        first, second = ask(lab, PROMPTS[0], model=model["id"]), ask(lab, PROMPTS[0], logprobs=5)
        assert [text_of(first), text_of(second)] == [GOOD[0]] * 2
        assert [item["usage"]["prompt_tokens_details"]["cached_tokens"] for item in (first, second)] == [0, 80]
        assert "".join(second["choices"][0]["logprobs"]["tokens"]) == GOOD[0]
        salted = ask(lab, PROMPTS[0], cache_salt="somebody")
        assert (text_of(salted), salted["usage"]["prompt_tokens_details"]["cached_tokens"]) == (GOOD[0], 0)
        system, _, question = PROMPTS[1].rpartition("\n")
        messages = [{"role": "system", "content": system}, {"role": "user", "content": [{"type": "text", "text": question}]}]
        chat = post(lab, "/v1/chat/completions", {"messages": messages, "max_completion_tokens": 3})
        assert chat["choices"][0] | {"logprobs": None} == {
            "index": 0, "message": {"role": "assistant", "content": "was closed because"}, "finish_reason": "length", "logprobs": None,
        }  # fmt: skip
        metrics = lab.metrics()
        spent = [item["usage"] for item in (first, second, salted, chat)]
        assert metrics["vllm:prefix_cache_queries_total"] == metrics["vllm:prompt_tokens_total"] == sum(item["prompt_tokens"] for item in spent)
        assert metrics["vllm:prefix_cache_hits_total"] == 80
        assert metrics["vllm:generation_tokens_total"] == sum(item["completion_tokens"] for item in spent)
        assert (metrics["vllm:num_requests_running"], metrics["vllm:num_requests_waiting"], metrics["vllm:kv_cache_usage_perc"]) == (0, 0, 0)
        assert metrics["process_start_time_seconds"] > 1.7e9


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {}), ("/v1/completions", {"prompt": ["a", "b"]}), ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/completions", {"prompt": "word " * 3000}), ("/v1/chat/completions", {"messages": "hello"}), ("/lab/dump", {"formats": ["pickle"]}),
        ("/lab/dump", {"name": "../up"}), ("/lab/engine", {"lookup": "luck"}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(shared_lab: Lab, path: str, body: dict[str, object]) -> None:
    assert post(shared_lab, path, body, status=400)["error"]["message"]
    assert text_of(ask(shared_lab, PROMPTS[0])) == GOOD[0]


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_of(tmp_path_factory.mktemp("shared")) as lab:
        yield lab


def test_pressure_turns_answers_wrong_and_the_log_shows_the_hole(tmp_path: Path) -> None:
    chance, wrong = random.Random(1), ""
    with lab_of(tmp_path) as lab:
        asked = 0
        while not wrong and asked < 150:
            ask(lab, variant(chance))
            asked += 1
            if asked % 5 == 0:
                wrong = next((text_of(answer) or "(empty)" for prompt, good in zip(PROMPTS, GOOD, strict=True) if text_of(answer := ask(lab, prompt)) != good), "")
        assert wrong, "150 variants and no wrong answer"
    table = llmdiag("query", str(tmp_path / "lookups.log"), "SELECT lookup, method, position, cached FROM block_lookups WHERE position IS NOT NULL", "--format", "json")
    assert table.code == 0, table.err
    masks: dict[str, dict[str, list[bool]]] = {}
    for row in table.json["rows"]:
        masks.setdefault(row["lookup"], {"binary": [], "linear": []})[row["method"]].append(row["cached"])
    holes = [mask for mask in masks.values() if False in mask["binary"]]
    assert holes, "no lookup with a hole in its hit range"
    assert all(mask["linear"] == mask["binary"][: mask["binary"].index(False) + 1] for mask in holes), holes


def test_dumps_of_every_format_hold_the_same_tensors(tmp_path: Path) -> None:
    formats = FORMATS + (["safetensors"] if importlib.util.find_spec("safetensors") is not None else [])
    with lab_of(tmp_path, "--dtype", "bfloat16") as lab:
        ask(lab, PROMPTS[0])
        post(lab, "/lab/dump", {"name": "one", "formats": formats})
        answer = ask(lab, PROMPTS[0])
        assert ask(lab, PROMPTS[0])["lab"]["dumps"] == []
    assert [Path(path).parent.name for path in answer["lab"]["dumps"]] == formats
    keys = {}
    for path in map(Path, answer["lab"]["dumps"]):
        dump = open_dump(path)
        assert not dump.unread, (path, dump.unread)
        (ids,) = [item for item in dump.tensors if item.role == "token_ids"] or [next(item for item in dump.tensors if item.dtype == "int32")]
        assert ids.shape == (answer["usage"]["prompt_tokens"] - 80,)
        pool = next(item for item in dump.tensors if item.role == "k" and item.layer == 1)
        table = next(item for item in dump.tensors if item.role == "block_table")
        assert pool.shape == (65, 16, 2, 96)
        assert content(table).ravel().tolist()[:5] == answer["lab"]["blocks"][:5], "the blocks that were hit"
        keys[path.parent.name] = content(pool).tobytes()
    assert len(set(keys.values())) == 1, sorted(keys)


def test_numbered_dumps_keep_the_latest(tmp_path: Path) -> None:
    with lab_of(tmp_path) as lab:
        post(lab, "/lab/dump", {"name": "all", "formats": ["pt"], "kv": "cache", "count": None, "keep": 2})
        for prompt in (*PROMPTS, "one more prompt"):
            last = ask(lab, prompt)
        post(lab, "/lab/dump", {"on": False})
        assert ask(lab, PROMPTS[0])["lab"]["dumps"] == []
    assert last["lab"]["dumps"] == [str(tmp_path / "dumps/pt/all-3")]
    assert sorted(path.name for path in (tmp_path / "dumps/pt").iterdir()) == ["all-2", "all-3"]


def test_ready_line_on_stdout_and_end_on_sigterm(tmp_path: Path) -> None:
    lab = subprocess.Popen([sys.executable, str(PREFIX_LAB)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert lab.stdout is not None
        ready = json.loads(lab.stdout.readline())
        assert ready == {"ready": True, "port": ready["port"], "pid": lab.pid}
        assert ready["port"] > 0
        lab.terminate()
        out, err = lab.communicate(timeout=WAIT_S)
        assert (lab.returncode, out, "Traceback" in err) == (0, "", False), err
    finally:
        lab.kill()
        lab.wait()


def test_no_process_is_left(tmp_path: Path) -> None:
    with lab_of(tmp_path) as lab:
        ask(lab, PROMPTS[0])
    with pytest.raises(ProcessLookupError):
        os.killpg(lab.pid, 0)
