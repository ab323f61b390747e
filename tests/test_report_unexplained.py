"""Reports without a finding: what was seen and no rule tells of, answers that are broken, and what is left out of the way."""

import subprocess
import sys
from pathlib import Path

import pytest

from diag import analysis, rules
from diag.model import Diagnosis
from diag.plots import Timeline
from diag.report import html, json_, markdown, text
from diag.report.words import headline, mostly_open
from tests.conftest import SAMPLES

RULES = rules.load(rules.shipped())
TITLE = "Seen, and no rule for it"
RECOVERIES = "Where the time of recoveries went"
BATCH_GET = "batch_get for request cmpl-5d02: 64 of 64 keys failed (error -704 object not found)"
SERVICE = """
import logging, sys, threading
from concurrent.futures import ThreadPoolExecutor
logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", filename=sys.argv[1])
begun = threading.Barrier(4)
ThreadPoolExecutor(3).map(lambda _: begun.wait(), range(3))  # idle afterwards: its threads share a lock too
begun.wait()
lock = threading.Lock()
lock.acquire()
def reload(): lock.acquire()
def answer(): lock.acquire()
for wait in (reload, answer):
    threading.Thread(target=wait, name=wait.__name__, daemon=True).start()
for number in range(3):
    logging.error("reload %d failed: weights.bin: short read", number)
print("up", flush=True)
sys.stdin.read()
"""


def diagnosed(*paths: Path) -> Diagnosis:
    (found,) = analysis.analyse(list(paths), RULES)
    return found


def words(shown: str) -> str:
    """Without line breaks."""
    return " ".join(shown.split())


def test_errors_that_no_rule_tells_of_are_on_the_first_screen_and_in_every_format() -> None:
    found = diagnosed(SAMPLES / "public-cases" / "R03")
    assert found.verdict == "clear", found.verdict
    screen = words(text.render(found).plain)
    assert f"Seen and no rule for it: ERROR, 40 times: {BATCH_GET} (server.log:11)" in screen, screen
    told = markdown.render(found)
    assert f"## {TITLE}\n\n- ERROR, 40 times: `{BATCH_GET} (server.log:11)`" in told, told[:800]
    page = html.render([found])
    assert page.count(f"<h2>{TITLE}</h2>") == 1 and BATCH_GET in page
    assert text.render(found, full=True).plain.count(TITLE) == 1


def test_a_report_with_a_finding_does_not_list_errors_beside_it() -> None:
    found = diagnosed(SAMPLES / "restarts" / "crashes")
    assert found.findings and TITLE not in [section.title for section in found.sections], found.sections
    assert "no rule for it" not in text.render(found).plain


def test_threads_that_wait_for_one_lock_in_all_reads_are_named_and_an_idle_pool_is_not(tmp_path: Path) -> None:
    log, bundle = tmp_path / "service.log", tmp_path / "bundle.zip"
    with subprocess.Popen([sys.executable, "-c", SERVICE, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None and service.stdout.readline() == "up\n"
            command = [sys.executable, "-m", "diag.cli", "snapshot", str(service.pid), "--window", "1", "--samples", "2", "--log", str(log), "-o", str(bundle), "--collect-only"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
        finally:
            service.kill()
    found = diagnosed(bundle)
    (section,) = (section for section in found.sections if section.unexplained)
    shown = {part.label: part.text for part in section.parts}
    assert set(shown) == {"ERROR, 3 times", "one lock"}, shown
    assert shown["ERROR, 3 times"].startswith("reload 0 failed: weights.bin: short read ("), shown
    assert shown["one lock"].startswith(f"2 threads of pid {service.pid} wait for it in all 2 reads (futex 0x"), shown
    assert "reload in reload <- run" in shown["one lock"] and "answer in answer <- run" in shown["one lock"], shown
    assert f"one lock: 2 threads of pid {service.pid}" in words(text.render(found).plain)


@pytest.mark.parametrize(("case", "line", "details"), [
    ("G09", "wrong with and without the cache: not the cache's fault, but broken", "(prompt 0: garbled, 4 of 4 answers)"),
    ("G03", "not reproducible, but broken: 8 of 24 answers are not as they should be", "prompt 3: garbled, 2 of 6 answers)"),
])  # fmt: skip
def test_answers_that_are_broken_are_not_clear(case: str, line: str, details: str) -> None:
    found = diagnosed(SAMPLES / "public-cases" / case)
    assert (found.verdict, headline(found)) == ("inconclusive", (f"INCONCLUSIVE: {line}", ""))
    for shown in (words(text.render(found).plain), html.render([found]).replace("&#39;", "'")):
        assert line in shown and details in shown, shown[:2000]
    assert "garbled" in markdown.render(found).partition("## ")[0]
    assert "garbled" in json_.render(found)["subject"]["broken"][0]  # type: ignore[index]


@pytest.mark.parametrize("sample", ["public-cases/G05", "public-cases/G06", "prefix-cache/noise-only"])
def test_answers_in_other_words_are_not_broken(sample: str) -> None:
    found = diagnosed(SAMPLES / sample)
    assert found.verdict == "clear" and "broken" not in found.subject, headline(found)


def test_clear_with_most_rules_open_is_not_green() -> None:
    found = diagnosed(SAMPLES / "public-cases" / "G05")
    assert found.verdict == "clear" and mostly_open(found)
    assert '<body class="inconclusive">' in html.render([found])
    well = diagnosed(SAMPLES / "ghost-key-retry-loop" / "busy-healthy.zip")
    assert TITLE not in [section.title for section in well.sections], "workers at their queue share its lock, and rest"
    assert well.verdict == "clear" and not mostly_open(well), (well.verdict, len(well.inconclusive))
    assert '<body class="clear">' in html.render([well])


def test_a_lone_start_that_went_well_is_a_picture_only() -> None:
    found = diagnosed(SAMPLES / "public-cases" / "L04")
    assert RECOVERIES not in text.render(found, full=True).plain and RECOVERIES not in markdown.render(found)
    assert f"<h2>{RECOVERIES}</h2>" in html.render([found])
    died = diagnosed(SAMPLES / "vllm-0.32-deaths" / "core-killed")
    assert RECOVERIES in text.render(died, full=True).plain


@pytest.mark.parametrize(("sample", "tone", "said"), [("somebody-elses-program", "calm", "oom kill by kernel (not of the service): "), ("cgroup-limit", "bad", "oom kill by kernel: ")])
def test_only_kills_of_the_service_are_red_in_the_timeline(sample: str, tone: str, said: str) -> None:
    found = diagnosed(SAMPLES / "signatures" / "oom-killed" / sample)
    lanes = [lane for section in found.sections for part in section.parts if isinstance(part.plot, Timeline) for lane in part.plot.lanes]
    kills = [(mark.tone, mark.text) for lane in lanes for mark in lane.marks if "oom kill" in mark.text]
    assert kills and all(kill[0] == tone and said in kill[1] for kill in kills), kills
