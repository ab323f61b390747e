"""`llmdiag help`: which topics there are, how they look to a person and to a pipe, and that what they say is so."""

import re
from pathlib import Path

import pytest

from diag import cli_help, demos
from tests import terminals
from tests.conftest import ROOT
from tests.live.run import llmdiag

OWN = ("automation", "limits", "reading", "safety", "tour", "rules", "samples", "container", "health")


def test_every_topic_is_listed_with_what_it_says() -> None:
    listed = llmdiag("help", cwd=ROOT).out
    for name, text in cli_help.topics().items():
        assert text.startswith("# "), name
        assert re.search(rf"^{re.escape(name)} +{re.escape(cli_help.title(text)[:60])}", listed, re.M), listed
    assert set(OWN) <= set(cli_help.topics())


def test_a_pipe_gets_the_text_as_it_is_written() -> None:
    assert llmdiag("help", "rules", cwd=ROOT).out == (ROOT / "rules" / "README.md").read_text()
    assert llmdiag("help", "auto", cwd=ROOT).out == (ROOT / "diag" / "help" / "automation.md").read_text(), "the beginning of a name is enough"


@pytest.mark.parametrize(("topic", "says"), [("nonsense", "no topic 'nonsense'"), ("sa", "'sa' may be safety or samples")])
def test_what_is_no_topic(topic: str, says: str) -> None:
    said = llmdiag("help", topic)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: {says}\n  llmdiag help lists them"), said.err


def test_a_shell_completes_topics() -> None:
    asked = llmdiag(_LLMDIAG_COMPLETE="bash_complete", COMP_WORDS="llmdiag help sa", COMP_CWORD="2")
    assert asked.out.split() == ["plain,safety", "plain,samples"]


def test_outside_of_a_clone_the_paths_are_those_of_the_installation(tmp_path: Path) -> None:
    shown = llmdiag("help", "tour", cwd=tmp_path).out
    paths = re.findall(r"(\S*/samples/\S+|\S*samples/\S+)", shown)
    assert len(paths) > 5
    assert [path for path in paths if not Path(path).exists()] == []


def test_a_person_gets_prose_that_fits_and_commands_that_are_whole() -> None:
    shown = terminals.seen("help", "rules", columns=60)
    assert "```" not in shown and "**" not in shown
    assert "    llmdiag analyze samples/vllm-0.32-cpu/busy --rules mine --explain frozen-worker" in shown
    prose = [line for line in shown.splitlines() if not line.startswith("    ")]
    assert [line for line in prose if len(line.rstrip()) > 60] == []
    assert any(line.startswith(" • ") for line in prose)


def test_the_tests_that_promises_name_are_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "diag" / "help" / "safety.md").read_text())
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_rule_of_ten_minutes_works(tmp_path: Path) -> None:
    text = (ROOT / "rules" / "README.md").read_text()
    rule = re.search(r"```toml\n(.+?)```", text, re.S)
    assert rule is not None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "frozen-worker.toml").write_text(rule[1])
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    tested = llmdiag("rules", "test", "mine", cwd=tmp_path)
    assert tested.code == 0, tested.out
    found = llmdiag("analyze", "samples/vllm-0.32-cpu/worker-stopped", "--rules", "mine", cwd=tmp_path)
    assert (found.code, found.out.splitlines()[0]) == (1, "CONFIRMED frozen-worker: worker 30484")
    assert "kill -CONT 30484" in found.out
    why = llmdiag("analyze", "samples/vllm-0.32-cpu/busy", "--rules", "mine", "--explain", "frozen-worker", cwd=tmp_path)
    assert why.code == 0, why.err
    assert "none of 1 workers is stopped" in why.out


def test_the_list_of_demos_says_what_each_shows() -> None:
    listed = llmdiag("demo", cwd=ROOT).out.splitlines()
    assert [line.split()[0] for line in listed] == ["demo", *demos.demos()]
    assert "poisoned cache entry" in listed[1]
