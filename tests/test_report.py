"""The reports: the first screen stays a screen, evidence stays evidence, and every format says the same.

`UPDATE_GOLDEN=1 pytest tests/test_report.py` writes tests/golden anew.
"""

import difflib
import io
import json
import os
import re
import shlex
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from diag import analysis, rules
from diag.model import Action, Collected, Diagnosis, RuleResult, Verdict
from diag.report import explain, inert, json_, layout, markdown, text, words
from tests.conftest import SAMPLES
from tests.report_cases import (
    CASES,
    CONFIRMED,
    CONFIRMED_CASE,
    EMPTY,
    FAR_OFF,
    HALF_OPEN,
    HELD,
    HOSTILE,
    KEY,
    LONG_COMMAND,
    MONSTERS,
    ODD_VALUES,
    PURGE,
    RULED_OUT,
    SUBJECT,
    UNDO,
    diagnosis,
    of_many,
    rule,
    signal,
    spoiled,
    unseen,
)

GOLDEN = Path(__file__).parent / "golden"
REAL = SAMPLES / "vllm-0.32-cpu"
EVERYTHING = {**CASES, **MONSTERS}
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def golden(name: str, shown: str) -> None:
    """Compare whole; a difference is shown as a unified diff."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    if shown != expected:
        difference = difflib.unified_diff(expected.splitlines(), shown.splitlines(), f"golden/{name}", "now", lineterm="")
        pytest.fail("\n".join(difference), pytrace=False)


def screen(found: Diagnosis, width: int = 100) -> list[str]:
    return text.render(found, width=width).plain.splitlines()


def cells(line: str) -> int:
    """Width in a terminal, counted apart from the code under test; terminals disagree about spacing marks (Mc), which are taken for none."""
    wide = sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)
    return wide - sum(unicodedata.category(char) in ("Mn", "Me", "Mc") for char in line)


def typed(lines: list[str], command: str) -> bool:
    """Is this command, whole, among the lines a shell would see? It joins lines at a backslash and words at ''."""
    shown, wanted = ("".join(text.replace("\\\n", "").replace("''", "").split()) for text in ("\n".join(lines), inert.command(command)))
    return wanted in shown


@pytest.mark.parametrize("name", CASES)
def test_golden_first_screen(name: str) -> None:
    golden(f"{name}.txt", text.render(CASES[name]).plain)
    golden(f"{name}-80.txt", text.render(CASES[name], width=80).plain)


@pytest.mark.parametrize("name", ["confirmed", "likely", "loose"])
def test_golden_full(name: str) -> None:
    golden(f"{name}-full.txt", text.render(CASES[name], full=True).plain)
    golden(f"{name}.md", markdown.render(CASES[name]))


def test_golden_hostile() -> None:
    golden("hostile.txt", text.render(MONSTERS["hostile"]).plain)
    golden("hostile.md", markdown.render(MONSTERS["hostile"]))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 240])
@pytest.mark.parametrize("name", EVERYTHING)
def test_first_screen_is_one_screen(name: str, width: int) -> None:
    lines = screen(EVERYTHING[name], width)
    assert len(lines) < 24  # the prompt takes the last line
    assert max(map(cells, lines)) <= max(40, min(width, 100))


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", EVERYTHING)
def test_no_line_of_the_full_report_is_too_wide(name: str, width: int) -> None:
    lines = text.render(EVERYTHING[name], full=True, width=width).plain.splitlines()
    assert max(map(cells, lines)) <= width
    assert lines[:3] == text.render(EVERYTHING[name], width=width).plain.splitlines()[:3]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", [name for name, found in EVERYTHING.items() if found.findings])
def test_ten_seconds_give_cause_proof_and_command(name: str, width: int) -> None:
    found = EVERYTHING[name]
    first = found.findings[0]
    lines = screen(found, width)
    assert lines[0].startswith(f"{first.verdict.value.upper()} {first.rule}")
    assert any("[+]" in line for line in lines)
    if len(first.actions[0].run) < 600:
        assert typed(lines, first.actions[0].run)
    assert any("paused at most" in line or "pause of the target unknown" in line for line in lines)
    assert any("collectors complete" in line for line in lines)


def test_the_screen_holds_what_a_person_on_call_needs() -> None:
    lines = screen(CONFIRMED_CASE)
    shown = " ".join(" ".join(lines).split())
    assert lines[0] == f"CONFIRMED ghost-key-retry-loop: {KEY}"
    for part in ("gpu-12", "pid 4121 (api_server, engine_core, 2 worker)", "2026-11-30 02:41:10Z", "is a ghost: placeholder (+1 like it)"):
        assert part in shown
    for part in ("cpu-spin: the service answers", "nvidia-smi did not answer", PURGE, UNDO, "event-loop-blocked", "critical"):
        assert part in shown
    for part in ("4/4 collectors complete", "paused at most 9 ms", "41 values redacted", "llmdiag report gpu-12.zip"):
        assert part in shown


def test_proof_comes_first() -> None:
    marks = [line for line in screen(CONFIRMED_CASE) if "[+]" in line]
    assert f"[+] {KEY} in redis://cache-0:6379" in marks[0]


def test_what_is_no_news_is_not_on_the_screen() -> None:
    shown = "\n".join(screen(CONFIRMED_CASE))
    assert "left the loop" not in shown  # an against that was looked at and is empty
    assert "backlog" not in shown  # a support that is empty
    assert "suspect key" not in shown  # a second proof, where there is one
    assert "backlog" in text.render(CONFIRMED_CASE, full=True).plain


def test_likely_says_why_and_how_to_settle_it() -> None:
    shown = "\n".join(screen(CASES["likely"]))
    assert "not confirmed: the proof (ghost key) could not be looked at" in " ".join(shown.split())
    assert "[?] key is healthy: could not be looked at (no Redis password)" in shown
    assert "LLMDIAG_REDIS_URL=redis://USER:PASSWORD@HOST:PORT llmdiag snapshot 4121" in shown
    assert "sigcont sent: 1" in shown
    assert "interrupted" in shown


@pytest.mark.parametrize("name", ["inconclusive", "loose", "40 open rules", "40 half open rules"])
def test_open_questions_come_with_the_command(name: str) -> None:
    found = EVERYTHING[name]
    lines = screen(found)
    assert typed(lines, words.missing(found)[0].command)
    assert f"{len(found.inconclusive)} of" in lines[0] or lines[0].startswith("INCONCLUSIVE")


def test_clear_says_what_was_ruled_out_by_what() -> None:
    shown = "\n".join(screen(CASES["clear"]))
    assert shown.startswith("CLEAR")
    assert "cpu-spin: the service answers: /health gave 200" in shown


def test_nearest_misses_first() -> None:
    against = rule("z", Verdict.NOT_MATCHED, signal("required", HELD, "a", "yes"), signal("against", HELD, "b", "the engine progresses"))
    assert words.ruled_out(diagnosis("clear", RULED_OUT, against))[0] == ("z", "the engine progresses")


def test_a_long_command_is_never_cut() -> None:
    found = diagnosis("matched", replace(CONFIRMED, actions=(Action("Delete", LONG_COMMAND, ""),)))
    for width in (80, 100):
        lines = screen(found, width)
        start = next(n for n, line in enumerate(lines) if "llmdiag scan-cache" in line)
        end = next(n for n in range(start, len(lines)) if not lines[n].endswith("\\"))
        script = "\n".join(["llmdiag() { printf '%s\\0' \"$@\"; }", *lines[start : end + 1]])
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split("\0")[:-1] == shlex.split(LONG_COMMAND)[1:]


ARGUMENTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)


@settings(max_examples=60, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.sampled_from([40, 80, 100]))
def test_a_shell_reads_a_shown_command_as_it_was_meant(args: list[str], width: int) -> None:
    lines = layout.command_lines("printf '%s\\0' " + " ".join(map(shlex.quote, args)), width, 13)
    assert max(map(cells, lines)) <= width
    assert all(line.isprintable() for line in lines)
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True)
    assert done.stdout == b"".join(arg.encode() + b"\0" for arg in args)


def test_marks_work_without_colour_and_markup_is_inert() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=100, no_color=True, force_terminal=True, color_system=None)
    console.print(text.render(spoiled("[red]x[/red] [link=http://e]y")), end="", soft_wrap=True, highlight=False)
    assert "[+] [red]x[/red] [link=http://e]y" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


@pytest.mark.parametrize("evidence", [HOSTILE, "a\tb\r\nc\x0b\x0c\x85\u2028d", "\u202e\u2066\u200f\ufeff\u200b\u061c", "\x9b31m\x07\x08", "\udc9b\udfff"])
def test_evidence_is_inert_in_text(evidence: str) -> None:
    found = spoiled(evidence)
    told = explain.facts(found, "cpu-spin")
    assert told is not None
    for shown in (text.render(found).plain, text.render(found, full=True).plain, explain.render(told).plain):
        assert all(line.isprintable() for line in shown.split("\n"))
        shown.encode()  # no lone surrogate that a terminal could not take
        assert not re.search("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]", shown)


@pytest.mark.parametrize("render", [lambda d: text.render(d, full=True).plain, markdown.render], ids=["text", "markdown"])
def test_a_line_of_a_megabyte_stays_small(render: Any) -> None:
    shown = render(spoiled("A" * (1 << 20)))
    assert len(shown) < 60_000
    assert "(1048576 characters)" in shown


ALLOWED = {
    "heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline", "text", "code_inline", "fence", "softbreak",
    "bullet_list_open", "bullet_list_close", "ordered_list_open", "ordered_list_close", "list_item_open", "list_item_close",
    "strong_open", "strong_close", "em_open", "em_close", "text_special",
}  # fmt: skip
# What GitHub and GitLab turn into links or pictures after Markdown was read, outside of code
LIVE = re.compile(r"@\w|#\d|GH-\d|!\d|://|www\.|:[a-z]+:", re.IGNORECASE)


def tokens(shown: str) -> list[Any]:
    found = MARKDOWN.parse(shown)
    return found + [child for token in found for child in token.children or ()]


@pytest.mark.parametrize("name", EVERYTHING)
def test_markdown_holds_nothing_but_text_code_and_lists(name: str) -> None:
    shown = markdown.render(EVERYTHING[name])
    assert {token.type for token in tokens(shown)} <= ALLOWED
    assert [token.content for token in tokens(shown) if token.type == "text" and LIVE.search(token.content)] == []
    assert all(line.replace("\u200b", "").isprintable() for line in shown.split("\n"))
    assert len(shown) <= markdown.MAX_CHARS
    assert shown.endswith("Review before sharing.\n")
    assert "\n\n\n" not in shown


PIECES = [
    "`", "```", "*", "**", "_", "[", "](", "![", "<b>", "<!--", "https://e.x", "www.e.x", "@u", "#1", "\n", "    ", "1. ", "- ", "|",
    "---", "~~~", "$", "&lt;", ":x:", "\\", ">", "# ", "GH-1", "a",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_no_evidence_becomes_markup(evidence: str) -> None:
    found = tokens(markdown.render(spoiled(evidence)))
    assert {token.type for token in found} <= ALLOWED
    assert [token.content for token in found if token.type == "text" and LIVE.search(token.content)] == []


def test_hostile_evidence_adds_no_section_and_no_step() -> None:
    tame, hostile = (tokens(markdown.render(spoiled(value))) for value in ("tame", HOSTILE.replace("\n", " ")))
    for kind in ("heading_open", "fence", "list_item_open", "paragraph_open"):
        assert sum(t.type == kind for t in tame) == sum(t.type == kind for t in hostile)


def test_commands_in_markdown_are_as_typed() -> None:
    for found in (CONFIRMED_CASE, MONSTERS["30 actions"], MONSTERS["hostile"]):
        blocks = [token.content.rstrip("\n") for token in tokens(markdown.render(found)) if token.type == "fence"]
        for action in found.findings[0].actions:
            assert inert.command(action.run) in blocks
            assert not action.undo or inert.command(action.undo) in blocks


def test_markdown_names_the_source_of_each_held_signal() -> None:
    spans = [token.content for token in tokens(markdown.render(CONFIRMED_CASE)) if token.type == "code_inline"]
    for held in CONFIRMED.held():
        assert {str(row["source"]) for row in held.rows} <= set(spans)
        assert set(held.says) <= set(spans)


def test_a_runbook_keeps_its_steps_and_its_markdown() -> None:
    shown = markdown.render(CONFIRMED_CASE)
    titles = re.findall(r"^### (.*)$", shown, re.MULTILINE)
    assert titles == ["Confirm", "Stop the bleeding", "Fix", "Prevent"]
    assert "1. Read the key again with `llmdiag scan-cache`.\n   Expected: the same reasons. If not: **stop**.\n2. Watch it." in shown
    assert "1. Version the key (`model:v2:<hash>`)." in shown


@pytest.mark.parametrize(
    ("runbook", "shown"),
    [
        ("```sh\nls `x` <b>\n```", "```\nls `x` <b>\n```"),
        ("```sh\n````\n```", "`````\n````\n`````"),
        ("```\nnever closed @all", "```\nnever closed @all\n```"),
        ("### Title\n<b>bold</b> @all", "**Title**\n\\<b\\>bold\\</b\\> @\u200ball"),
        ("   - a `b` *c* **d** _e_", "   - a `b` *c* **d** \\_e\\_"),
        ("``` `a` `` b ` ** c* d **", "\\`\\`\\` `a` \\`\\` b \\` \\*\\* c\\* d \\*\\*"),
        ("a\r\nb\x0bc\u2028d", "a\nb\\\\x0bc\\\\u2028d"),
        ("![i](u) | --- |", "!\\[i\\](u) \\| --- \\|"),
    ],
)
def test_runbook_markdown(runbook: str, shown: str) -> None:
    assert markdown.runbook(runbook) == shown


@pytest.mark.parametrize("evidence", ["`", "``", "a`b``c", " ", "`x", "x` ", "", "```\n```", "|", "\\"])
def test_a_code_span_gives_back_what_went_in(evidence: str) -> None:
    (span,) = [token for token in tokens(markdown.code(evidence)) if token.type == "code_inline"]
    assert span.content == (inert.inert(evidence) or "(empty)")


def test_a_report_that_is_too_long_says_so() -> None:
    big = replace(of_many(60, "word " * 120), runbook={"fix": "\n".join(f"{n}. step `{'x' * 500}`" for n in range(80))})
    shown = markdown.render(diagnosis("matched", *(replace(big, rule=f"rule-{n}") for n in range(12))))
    assert 50_000 < len(shown) <= markdown.MAX_CHARS
    assert "**Cut:** the whole report has" in shown
    assert "llmdiag report gpu-12.zip -f md" in shown
    assert PURGE in shown  # the first finding's action survives
    assert shown.count("```") % 2 == 0


def test_several_captures_share_the_room_of_one_report() -> None:
    big = diagnosis("matched", replace(of_many(60, "word " * 120), runbook={"fix": "\n".join(f"{n}. `{'x' * 500}`" for n in range(80))}))
    shown = markdown.render_all([big] * 4)
    assert len(shown) <= markdown.MAX_CHARS + 4
    assert shown.count("**Cut:** the whole report has") == 4


@pytest.mark.parametrize("name", EVERYTHING)
def test_json_keeps_its_contract(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json_.schema())
    document = json_.render(EVERYTHING[name])
    jsonschema.validate(document, json_.schema())
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    jsonschema.validate({**document, "captures": [document, document]}, json_.schema())


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d: d.pop("side_effects"), lambda d: d.update(confidence=0.9), lambda d: d.update(verdict="broken"),
        lambda d: d["findings"][0].update(score=1), lambda d: d["findings"][0].pop("evidence"), lambda d: d["findings"][0]["actions"][0].update(sudo=True),
        lambda d: d["findings"][0]["evidence"][0].update(role="hint"), lambda d: d["collected"][0].update(status="fine"), lambda d: d["side_effects"].pop("pause_ms"),
    ],
)
def test_the_schema_is_closed(break_it: Any) -> None:
    document: Any = json_.render(CONFIRMED_CASE)
    break_it(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_.schema())


def test_json_carries_odd_values() -> None:
    odd = replace(CONFIRMED, signals=(replace(signal("proof", HELD, "p", "x"), rows=(ODD_VALUES,)),))
    document: Any = json_.render(diagnosis("matched", odd, side_effects={"pause_ms": float("nan")}))
    assert document["findings"][0]["evidence"][0]["rows"] == [{
        "nan": None, "inf": None, "ts": "2026-11-30T02:41:10Z", "none": None, "zero": 0, "no": False, "aware": "2026-11-30T02:41:10Z",
        "list": [1.5, None, None], "struct": {"a": None}, "bytes": "ff00", "big": 10**30, "source": "a:1",
    }]  # fmt: skip
    assert document["side_effects"] == {"pause_ms": None}
    jsonschema.validate(document, json_.schema())


def test_json_keeps_evidence_as_it_was() -> None:
    document: Any = json.loads(json.dumps(json_.render(spoiled(HOSTILE))))
    assert document["findings"][0]["evidence"][0]["rows"][0]["key"] == HOSTILE
    assert json.dumps(json_.render(spoiled(HOSTILE))).isascii()


@pytest.mark.parametrize("name", ["unknown", "loose", "nothing at all"])
def test_unknown_is_said_so_in_every_format(name: str) -> None:
    found = EVERYTHING[name]
    for shown in (text.render(found).plain, text.render(found, full=True).plain, markdown.render(found)):
        assert "unknown" in shown
        assert "None" not in shown
        assert "nan" not in shown.split()


@pytest.mark.parametrize(("name", "wanted"), [("ghost-key-retry-loop", "CONFIRMED"), ("cpu-spin", "NOT MATCHED"), ("event-loop-blocked", "LIKELY")])
def test_explain(name: str, wanted: str) -> None:
    told = explain.facts(CONFIRMED_CASE, name)
    assert told is not None
    shown = explain.render(told).plain
    assert shown.startswith(f"{wanted} {name}\n")
    assert max(map(cells, shown.splitlines())) <= 100
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_explain_shows_every_signal_and_the_command() -> None:
    told = explain.facts(CASES["likely"], "ghost-key-retry-loop")
    assert told is not None
    shown = explain.render(told).plain
    for part in ("[+] looping (required): held", "looping/t.jsonl:1", "[?] ghost_key (proof): could not look", "LLMDIAG_REDIS_URL="):
        assert part in shown
    assert explain.facts(CASES["likely"], "no-such-rule") is None


def test_a_pid_from_a_manifest_cannot_add_a_command() -> None:
    found = diagnosis("clear", rule("x", Verdict.INCONCLUSIVE, unseen("required", "processes")), subject=SUBJECT | {"pid": "1; rm -rf /"})
    assert words.missing(found)[0].command == "llmdiag snapshot '1; rm -rf /'"


def test_further_rows_are_counted() -> None:
    many = replace(signal("proof", HELD, "p", *"abcde"), rows=tuple({"source": f"a:{n}"} for n in range(1000)), more=True)
    found = diagnosis("matched", replace(CONFIRMED, signals=(many,)))
    assert "(+999 or more like it)" in "\n".join(screen(found))
    assert "p: 995 or more further rows" in text.render(found, full=True).plain
    assert "p: 995 or more further rows" in markdown.render(found)


def blind(*names: str) -> tuple[RuleResult, ...]:
    return tuple(rule(name, Verdict.INCONCLUSIVE, unseen("required", "threads")) for name in names)


@pytest.mark.parametrize(
    ("results", "status", "headline"),
    [
        (blind("a", "b"), "partial", "INCONCLUSIVE: nothing could be judged"),
        (blind("a", "b"), "failed", "INCONCLUSIVE: nothing could be looked at"),
        ((*blind("a", "b"), FAR_OFF), "ok", "INCONCLUSIVE: 2 of 3 rules could not be judged"),
        ((*blind("a"), HALF_OPEN), "ok", "INCONCLUSIVE process-stopped: neither confirmed nor ruled out by this evidence"),
    ],
)
def test_inconclusive_says_how_blind_it_is(results: tuple[RuleResult, ...], status: str, headline: str) -> None:
    collected = tuple(Collected(name, name, status) for name in ("threads", "sockets"))
    assert screen(diagnosis("inconclusive", *results, collected=collected))[0] == headline


def test_collectors_that_were_cut_short_count_as_partial() -> None:
    said = [("a", "t", "partial"), ("b", "u", "ok"), ("b", "v", "failed"), ("c", "w", "failed"), ("d", "x", "ok"), ("e", "y", "skipped")]
    shown = "\n".join(screen(diagnosis("clear", collected=tuple(Collected(*item) for item in said))))
    assert "1/5 collectors complete, 2 partial (not: a, b, c +1)" in shown


def test_a_sign_that_was_not_found_reads_as_a_sentence() -> None:
    assert words.ruled_out(diagnosis("clear", FAR_OFF)) == [("process-stopped", "its sign 'all stopped' was not found")]


ROOT_NEEDED = "run llmdiag as the user of that process with CAP_SYS_PTRACE, or as root"
PORT_NEEDED = "no port is known because the sockets of the service were not read; name it with --port"


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("", "llmdiag snapshot 4121"),
        (f"/proc/4121/stat: Permission denied; {ROOT_NEEDED}", "sudo llmdiag snapshot 4121"),
        ("the descriptors of pid 4121 may not be read; run llmdiag as root or as the owner of the service", "sudo llmdiag snapshot 4121"),
        ("stderr of pid 7 may not be read; run llmdiag as its user or root, or give --log FILE", "sudo llmdiag snapshot 4121"),
        ("start the container with --cap-add SYS_PTRACE, or run llmdiag as root on the host against the host's pid", "llmdiag snapshot 4121"),
        (PORT_NEEDED, "llmdiag snapshot 4121 --port PORT"),
        ("http://h/metrics wants credentials (401): give the token with --bearer-file", "llmdiag snapshot 4121 --bearer-file FILE"),
        ("the output goes to a pipe; give --log FILE", "llmdiag snapshot 4121 --log FILE"),
        ("no server is known; name it with --redis URL", "LLMDIAG_REDIS_URL=redis://HOST:PORT llmdiag snapshot 4121"),
        (f"no server is known; name it with --redis URL; {ROOT_NEEDED}", "sudo LLMDIAG_REDIS_URL=redis://HOST:PORT llmdiag snapshot 4121"),
        ("local variables were not read: --locals off", "llmdiag snapshot 4121"),
    ],
)
def test_the_printed_command_has_what_the_reason_asks_for(reason: str, command: str) -> None:
    collected = (Collected("threads", "threads", "partial", reason or None),)
    found = diagnosis("inconclusive", *blind("a"), collected=collected)
    assert [gap.command for gap in words.missing(found)] == [command]
    assert typed(screen(found, 80), command)
    document: Any = json_.render(found)
    assert document["inconclusive"][0]["missing"][0]["collect"] == [command]


def test_an_option_is_asked_for_once_and_not_where_a_whole_snapshot_finds_it() -> None:
    open_question = rule("a", Verdict.INCONCLUSIVE, unseen("required", "probes"))
    asked = diagnosis("inconclusive", open_question, collected=(Collected("metrics", "probes", "partial", PORT_NEEDED),))
    assert words.missing(asked)[0].command == "llmdiag snapshot 4121 --port PORT"
    left_out = (*asked.collected, Collected("sockets", "sockets", "skipped", "--skip sockets"))
    found = replace(asked, collected=left_out, collect_hints={})
    assert words.missing(found)[0].command == "llmdiag snapshot 4121"


def test_a_known_cache_server_that_wants_a_password_gets_a_place_for_it() -> None:
    reason = "redis://[::1]:6379 wants a password; set LLMDIAG_REDIS_URL to a URL with the rights to read it"
    found = diagnosis(
        "inconclusive", rule("a", Verdict.INCONCLUSIVE, unseen("required", "cache_keys")), collected=(Collected("redis", "cache_keys", "failed", reason),),
        collect_hints={"cache_keys": "LLMDIAG_REDIS_URL='redis://[::1]:6379' llmdiag snapshot {pid}"},
    )
    assert words.missing(found)[0].command == "LLMDIAG_REDIS_URL='redis://USER:PASSWORD@[::1]:6379' llmdiag snapshot 4121"


def test_many_tables_leave_room_for_the_reason() -> None:
    collected = tuple(Collected("threads", f"table_{n}", "partial", "llmdiag was stopped") for n in range(12))
    open_question = rule("a", Verdict.INCONCLUSIVE, *(unseen("required", f"table_{n}", name=f"s{n}") for n in range(12)))
    shown = " ".join(" ".join(screen(diagnosis("inconclusive", open_question, collected=collected), 80)).split())
    assert "collect table_0, table_1, table_10, table_11 and 8 more tables (llmdiag was stopped)" in shown


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_reason_is_shortened_before_its_remedy(width: int) -> None:
    reason = f"not allowed for 212 threads, e.g. /proc/4121/task/{'4121/stat and ' * 20}more; {ROOT_NEEDED}"
    found = diagnosis("inconclusive", *blind("a"), collected=(Collected("threads", "threads", "partial", reason),))
    shown = " ".join(" ".join(screen(found, width)).split())
    assert "1 collect threads (not allowed for" in shown
    assert f"…; {ROOT_NEEDED})" in shown


def test_not_redacted_is_shouted() -> None:
    found = diagnosis("clear", subject=SUBJECT | {"redaction": False})
    assert "NOT redacted" in "\n".join(screen(found))
    assert "NOT redacted" in markdown.render(found)


@pytest.mark.parametrize("signals", [(), (signal("required", EMPTY),), (signal("support", HELD),)])
def test_results_without_anything_to_say(signals: tuple[Any, ...]) -> None:
    results = [RuleResult("r", "t", "low", verdict, signals) for verdict in Verdict]
    found = diagnosis("matched", *results)
    for shown in (text.render(found, full=True).plain, markdown.render(found)):
        assert "r" in shown
    jsonschema.validate(json_.render(found), json_.schema())


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded engine is not in this checkout")
@pytest.mark.parametrize(("case", "verdict"), [("worker-stopped", "matched"), ("idle", "clear"), ("busy", "clear")])
def test_a_real_engine(case: str, verdict: str) -> None:
    (found,) = analysis.analyse([REAL / case], rules.load(rules.shipped()))
    assert found.verdict == verdict
    for width in (80, 100):
        lines = screen(found, width)
        assert len(lines) <= 24
        assert max(map(cells, lines)) <= width
    if verdict == "matched":
        assert lines[0] == "CONFIRMED worker-dead-or-stopped: worker 30484, which is stopped by a signal (state T)"
        assert any("progress counters" in line for line in lines)
        assert any(line.strip() == "kill -CONT 30484" for line in lines)
    jsonschema.validate(json.loads(json.dumps(json_.render(found), allow_nan=False)), json_.schema())
    assert {token.type for token in tokens(markdown.render(found))} <= ALLOWED


def test_the_command_that_was_just_run_is_not_what_to_do_next() -> None:
    """A snapshot that left nothing out, and gaps that only a journal or a tensor dump would fill."""
    hints = {"event_files": "llmdiag analyze PATHS JOURNAL", "thread_places": "llmdiag snapshot {pid}", "sockets": "llmdiag snapshot {pid}"}
    results = (rule("a", Verdict.INCONCLUSIVE, unseen("required", "thread_places.rest")), rule("b", Verdict.INCONCLUSIVE, unseen("required", "event_files", "no journal")))
    clear = diagnosis("clear", *results, RULED_OUT, collect_hints=hints)
    shown = " ".join(text.render(clear).plain.split())
    assert "Do next 1 if it misbehaves again, take a snapshot while it does llmdiag snapshot 4121" in shown, shown
    assert "collect" not in shown.partition("Do next")[2].partition("Evidence")[0], shown
    assert "1. If it misbehaves again" in markdown.render(clear, markdown.LIMITS["slack"])

    denied = rule("c", Verdict.INCONCLUSIVE, unseen("required", "sockets", "not readable; run llmdiag as root"))
    (gap,) = words.next_to_collect(diagnosis("clear", *results, denied, collect_hints=hints))
    assert (gap.tables, gap.because) == (("sockets", "thread_places.rest"), "not readable; run llmdiag as root")


def test_the_first_line_is_cut_at_its_end_and_whole_in_a_pipe() -> None:
    long = replace(CONFIRMED, subject="worker pid 901 and 1 more, since 2026-09-14 06:22:00: the network between the nodes or devices failed")
    found = diagnosis("matched", long)
    cut, whole = (text.render(found, whole=value).plain.splitlines()[0] for value in (False, True))
    assert whole == f"CONFIRMED ghost-key-retry-loop: {long.subject}"
    assert cut.endswith("…") and whole.startswith(cut[:-1]) and len(cut) <= text.WIDTH, cut


@pytest.mark.parametrize(("rules", "redacted", "says"), [(1, 1, ("1 rule ", "1 value redacted")), (12, 0, ("12 rules", "0 values redacted"))])
def test_one_is_no_plural(rules: int, redacted: int, says: tuple[str, ...]) -> None:
    shown = text.render(diagnosis("clear", RULED_OUT, subject=SUBJECT | {"rules": rules, "redacted": redacted})).plain.replace("\n", " ")
    assert all(part in shown for part in says), shown
