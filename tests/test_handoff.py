"""Reports that are handed on: a block for an upstream project, and Markdown that fits where it is pasted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from diag import analysis, cli_analyze, rules
from diag.model import Diagnosis
from diag.report import handoff, markdown
from diag.report.sections import environment
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

HARD = {"github": 65_536, "gitlab": 1_000_000, "jira": 32_767, "slack": 4_000}
"""Characters of an issue, a comment, a comment and, as advised, a message."""
RULES = rules.load(rules.shipped())


def judged(sample: str) -> Diagnosis:
    return analysis.best(analysis.analyse([SAMPLES / sample], RULES))


@pytest.fixture(scope="module")
def ghost() -> Diagnosis:
    return judged("ghost-key-retry-loop/incident.zip")


def headings(text: str) -> list[str]:
    tokens = MarkdownIt().parse(text)
    return [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]


def test_it_holds_what_an_upstream_project_asks_for(ghost: Diagnosis) -> None:
    shown = handoff.render(ghost)
    assert [heading.partition(":")[0].partition(",")[0] for heading in headings(shown)] == [
        "CONFIRMED ghost-key-retry-loop", "Signature", "Environment", "Stacks", "Ruled out", "Not looked at", "How this was collected",
    ]
    assert "clip-vit-b-32:image:" in shown.splitlines()[0]
    assert "versions: `python 3.11.7, kernel " in shown
    assert "lab.py --ready-fd" in shown, "the command line"
    assert "2 threads (`worker-0, worker-1 of api_server, in 8 stacks`): `AbstractConnection.send_packed_command (redis/connection.py) <- " in shown
    assert "llmdiag scan-cache" not in shown, "what to do on this machine is not theirs"
    assert shown.endswith("Review before sharing.\n")


def test_threads_at_the_same_place_are_one_line_and_the_most_come_first() -> None:
    shown = handoff.render(judged("vllm-0.32-cpu/worker-stopped"))
    lines = [line for line in shown.splitlines() if line.startswith("- ") and " (threading.py)" in line]
    told = [int(line.split()[1]) for line in lines]
    assert len(told) > 3
    assert told == sorted(told, reverse=True)


def test_loose_evidence_that_nobody_redacted_is_redacted(tmp_path: Path) -> None:
    secret = "sk-live-4242424242424242abcdef"
    (tmp_path / "ps.txt").write_text(
        "  PID  PPID STAT   RSS                  STARTED COMMAND\n"
        f"  801     1 Ssl  90000 Mon Nov 30 01:00:00 2026 /usr/bin/python3 -m vllm.entrypoints.openai.api_server --model m --api-key {secret}\n"
    )
    (diagnosis,) = analysis.analyse([tmp_path], RULES)
    shown = handoff.render(diagnosis)
    assert "vllm.entrypoints.openai.api_server --model m --api-key [REDACTED:api-key:" in shown, shown
    assert secret not in shown


@pytest.mark.parametrize("limit", HARD)
def test_it_fits_where_it_is_pasted(ghost: Diagnosis, limit: str) -> None:
    most = markdown.LIMITS[limit]
    assert most < HARD[limit]
    wide = replace(ghost, findings=tuple(replace(ghost.findings[0], rule=f"rule-{n}", about="word " * 4000) for n in range(60)))
    for diagnoses in ([ghost], [wide], [ghost, wide, ghost], [ghost] * 80):
        shown = markdown.render_all(diagnoses, most)
        assert len(shown) <= most
        assert shown.count("```") % 2 == 0
    for diagnosis in (ghost, wide):
        shown = handoff.render(diagnosis, most)
        assert len(shown) <= most
        assert "Review before sharing." in shown


def test_what_was_cut_is_said_and_the_proof_stays(ghost: Diagnosis) -> None:
    shown = markdown.render_all([ghost], markdown.LIMITS["slack"])
    assert shown.startswith("# CONFIRMED ghost-key-retry-loop: `clip-vit-b-32:image:")
    assert "is a ghost: placeholder" in shown
    assert "**Cut:** the whole report has" in shown
    assert shown.endswith("Review before sharing.\n")


def test_of_many_captures_the_last_ones_are_shown(ghost: Diagnosis) -> None:
    shown = markdown.render_all([ghost] * 80, markdown.LIMITS["slack"])
    assert shown.startswith("*77 earlier captures are left out.*\n")


def test_the_command_line_knows_the_limits(tmp_path: Path) -> None:
    assert set(cli_analyze.LIMITS) == set(markdown.LIMITS)
    bundle, out = str(SAMPLES / "ghost-key-retry-loop" / "incident.zip"), tmp_path / "for-them.md"
    said = llmdiag("report", bundle, "--handoff", "--limit", "slack", "-o", str(out))
    assert (said.code, said.out) == (1, "")
    assert out.read_text().startswith("## CONFIRMED ghost-key-retry-loop")
    assert len(out.read_text()) <= markdown.LIMITS["slack"]
    implied = llmdiag("report", bundle, "--limit", "jira")
    assert implied.code == 1 and implied.out.startswith("# CONFIRMED ghost"), implied
    assert len(implied.out) <= markdown.LIMITS["jira"]
    for wrong in (("--limit", "jira", "-f", "json"), ("--handoff", "-f", "json"), ("--limit", "jira", "-f", "html")):
        refused = llmdiag("report", bundle, *wrong)
        assert (refused.code, refused.out) == (2, ""), wrong
        assert "Error: --" in refused.err


Rows = Sequence[Mapping[str, object]]


def environment_of(**rows: Rows) -> list[tuple[str, str]]:
    (section,) = environment.sections({"versions": (), "cards": (), "commands": (), **rows})
    return [(part.label, part.text) for part in section.parts]


def test_the_environment_names_the_engine_first_and_hosts_apart() -> None:
    versions = [{"host": "a", "component": name, "version": "1"} for name in ("aiohttp", "torch", "vllm")]
    card = {"host": "a", "name": "NVIDIA H100", "tool": "nvidia-smi", "cards": 8, "memory_bytes": 80 << 30}
    assert environment_of(versions=versions, cards=[card]) == [
        ("versions", "vllm 1, torch 1, aiohttp 1"), ("accelerators", "8 x NVIDIA H100, 80 GiB each (by nvidia-smi)"),
    ]
    commands = [{"host": host, "role": "worker", "cmd": "VLLM::Worker", "processes": 4} for host in ("a", "b")]
    assert environment_of(commands=commands) == [("worker of a", "VLLM::Worker (4 processes)"), ("worker of b", "VLLM::Worker (4 processes)")]
    many = environment_of(commands=[{"host": "a", "role": "worker", "cmd": f"w{n}", "processes": 1} for n in range(20)])
    assert many[-1] == ("", "8 further command lines are in the table processes.")
    two = environment_of(versions=[{"host": "a", "component": "vllm", "version": version} for version in ("0.32.0", "0.33.0")])
    assert two == [("versions", "vllm 0.32.0 and 0.33.0")]


def test_slack_gets_no_longer_fences_and_calls_nobody() -> None:
    """It ends code at the first back-tick, and `<!channel>` wakes a hundred people up."""
    hostile = markdown.code("boom ``` <!channel> <@U123> `x` &")
    shown = markdown.for_slack(f"- ERROR: {hostile}\n\n```sh\nllmdiag snapshot 1\n```\n")
    assert shown == "- ERROR: `boom ''' < !channel> < @U123> 'x' &`\n\n```sh\nllmdiag snapshot 1\n```\n"


SECRETS = ("hunter2secret", "sk-abcdEFGH1234567890abcdEFGH", "tok3nSecretValue123456")
LEAKS = """(EngineCore pid=7) ERROR 11-30 21:00:05 [core.py:2] EngineCore encountered a fatal error.
(EngineCore pid=7) ERROR 11-30 21:00:05 [core.py:2] RuntimeError: CUDA error: an illegal memory access was encountered, postgres://bob:hunter2secret@db/x
(EngineCore pid=7) ERROR 11-30 21:00:06 [core.py:2] api_key=sk-abcdEFGH1234567890abcdEFGH failed, Authorization: Bearer tok3nSecretValue123456
"""


@pytest.mark.parametrize("form", [("-f", "md"), ("--limit", "slack"), ("-f", "html"), ("-f", "json"), ("-f", "text"), ("--handoff",)], ids=" ".join)
def test_no_report_tells_the_secrets_of_loose_files(form: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text(LEAKS * 4)
    out = tmp_path / "report.out"
    said = llmdiag("report", str(tmp_path / "engine.log"), "--date", "2026-11-30", *form, "-o", str(out))
    assert said.code == 1, said
    shown = out.read_text()
    assert "illegal memory access" in shown, "nothing was told at all"
    assert [secret for secret in SECRETS if secret in shown + said.err] == []


def test_what_is_cut_ends_in_no_heading(ghost: Diagnosis) -> None:
    for most in range(2_000, 6_000, 37):
        kept = markdown.render_all([ghost], most).partition("**Cut:**")[0].rstrip().splitlines()
        assert not kept[-1].startswith("#"), (most, kept[-3:])
