"""One start is one, what came after ready is no part of the time to recover, and the advice goes to what took longest."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from diag.recovery.advice import OF_STAGE
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

HEAD = """(APIServer pid=5100) INFO 06-10 09:00:04 [api_server.py:1024] vLLM API server version 0.18.1
(APIServer pid=5100) INFO 06-10 09:00:04 [api_server.py:1024] non-default args: {'model_tag': '/models/one', 'port': 8000}
(EngineCore pid=5140) INFO 06-10 09:00:09 [core.py:93] Initializing a V1 LLM engine (v0.18.1) with config: model='/models/one'
(Worker pid=5180) INFO 06-10 09:00:13 [gpu_model_runner.py:2602] Starting to load model /models/one...
"""
LOADED = "(Worker pid=5180) INFO 06-10 %s [gpu_model_runner.py:2620] Model loading took 15.27 GiB memory and %s seconds\n"
SERVES = "(APIServer pid=5100) INFO 06-10 %s [api_server.py:1024] Starting vLLM API server 0 on http://0.0.0.0:8000\n"
READY = "(APIServer pid=5100) INFO 06-10 %s [on.py:62] Application startup complete.\n"


def recovered(*paths: Path) -> list[dict[str, Any]]:
    said = llmdiag("recovery", *map(str, paths), "--date", "2026", "--tz", "UTC", "-f", "json")
    assert said.code == 0, said.err
    found: list[dict[str, Any]] = json.loads(said.out)["recoveries"]
    return found


@pytest.mark.parametrize(("loaded", "up", "seconds"), [("09:01:00", "09:01:30", 86.0), ("09:03:02", "09:03:17", 193.0), ("10:40:00", "10:40:30", 6026.0)])
def test_however_long_a_model_loads_it_is_one_start(tmp_path: Path, loaded: str, up: str, seconds: float) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(HEAD + LOADED % (loaded, "40.00") + SERVES % up + READY % up)
    found = recovered(log)
    assert [(item["cause"], item["mttr_s"]) for item in found] == [("start", seconds)]


def test_the_cold_start_of_the_samples_is_one() -> None:
    found = recovered(SAMPLES / "recoveries" / "cold-start")
    assert [(item["cause"], item["bottleneck"], item["mttr_s"]) for item in found] == [("start", "weights", 198.0)]


def test_an_engine_that_begins_anew_after_it_was_ready_is_two(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    again = (HEAD + SERVES % "09:00:40" + READY % "09:00:40").replace("06-10", "06-11").replace("51", "61")
    log.write_text(HEAD + SERVES % "09:00:40" + READY % "09:00:40" + again)
    assert len(recovered(log)) == 2


SAID = {
    "nobody-asked": ("process", "after ready: users were served 96.0 s later (nobody asked before", "process"),
    "slow-switch": ("traffic_switched", "after ready: users were served 96.0 s later; the prefix cache", "traffic_switched"),
    "not-warm": ("process", "after ready: users were served 9.00 s later; the prefix cache was warm 77.0 s later", "warm"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_came_after_ready_stands_apart_and_the_advice_goes_to_what_took_longest(name: str) -> None:
    bottleneck, after, advised = SAID[name]
    found = recovered(SAMPLES / "recoveries" / name)[-1]
    assert (found["bottleneck"], found["mttr_s"], found["advice"][0]) == (bottleneck, 37.0, OF_STAGE[advised])
    text = " ".join(llmdiag("recovery", str(SAMPLES / "recoveries" / name), COLUMNS="100").out.split())
    assert "time to recover 37.0 s, from the first sign to ready; longest stage: process, 8.90 s" in text
    assert after in text
    assert "most of it" not in text


def test_words_of_the_house_are_explained_where_they_stand() -> None:
    text = llmdiag("recovery", str(SAMPLES / "recoveries" / "nobody-asked"), COLUMNS="100").out
    assert re.search(r"^  \* what took longest", text, re.M)
    assert "second look (memory and latency once the first peak" in text
    assert "share of requests that failed until ready" in text


def test_an_engine_that_is_still_down_is_said_to_be(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    died = "(APIServer pid=5100) ERROR 06-10 09:20:00 [async_llm.py:707] AsyncLLM output_handler failed. EngineDeadError: EngineCore encountered an issue.\n"
    log.write_text(HEAD + SERVES % "09:00:40" + READY % "09:00:40" + died)
    text = llmdiag("recovery", str(log), "--date", "2026", "--tz", "UTC", COLUMNS="100").out
    assert "IT IS DOWN NOW, where the evidence ends, since 2026-06-10 09:20:00Z" in text
    log.write_text(HEAD + SERVES % "09:00:40" + READY % "09:00:40" + died + (HEAD + READY % "09:00:40").replace("09:00:", "09:21:"))
    back = llmdiag("recovery", str(log), "--date", "2026", "--tz", "UTC", COLUMNS="100").out
    assert "DOWN NOW" not in back and "time to recover 100.0 s" in back, back
