"""Sections of a full report: what tables say beside the findings, in every format, chosen by the tables that are there."""

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.cells import cell_len

from diag import analysis, evidence, rules
from diag.model import Diagnosis, Part, Section
from diag.report import answers, heatmap, json_, markdown, sections, text
from diag.report.answers import beside, grep
from diag.report.sections import kv_map, prefix_experiment
from diag.report.words import headline
from tests.conftest import SAMPLES

RULES = rules.load(rules.shipped())
INCIDENT = SAMPLES / "prefix-block-mismatch" / "incident"
HITS_WRONG = SAMPLES / "prefix-cache" / "hits-wrong" / "repro.json"
GOOD = "opens at dawn when the tide is low and the night crew has left for home"
BAD = "opens at dawn when the tide is low and the night crew has I cannot tell from this text."


def trial(arm: str, ordinal: int, kind: str = "reask", **facts: object) -> dict[str, object]:
    return {
        "arm": arm, "ordinal": ordinal, "kind": kind, "prompt": 0, "variant": None, "answer_class": "same", "suspicious": False, "reproduced": None,
        "hit": True, "cached_tokens": 80, "prompt_tokens": 92, "bypass": False, "seconds": 0.1, "ts": 1796050900.0 + ordinal + (1000 if arm == "pressure" else 0),
        "note": None, "excerpt": None, "request": f"cmpl-{arm[0]}{ordinal}", "sent": f"llmdiag-5ee1-{ordinal}", **facts,
    }  # fmt: skip


WRONG: dict[str, object] = {"answer_class": "different", "suspicious": True, "excerpt": BAD}
PAST: dict[str, object] = {"bypass": True, "hit": False, "cached_tokens": 0}
TRIALS = [
    trial("baseline", 1, "baseline", answer_class="unjudged", **PAST), trial("baseline", 2), trial("control", 1), trial("control", 2, "variant", answer_class="unjudged"),
    *(trial("pressure", n) for n in (1, 2)),
    trial("pressure", 3, "variant", answer_class="garbled", suspicious=True, reproduced=False, note="just the same with the cache bypassed"),
    trial("pressure", 4, **WRONG, reproduced=True), trial("pressure", 5, "confirm", **WRONG), trial("pressure", 6, "confirm", **PAST),
    *(trial("pressure", n, "repeat", **WRONG) for n in (7, 8)), trial("pressure", 9, "repeat"), trial("pressure", 10, **WRONG), trial("pressure", 11),
]  # fmt: skip


def document(**facts: object) -> dict[str, object]:
    return {
        "schema": "llmdiag.repro/1", "verdict": "reproduced", "because": ["it failed"], "url": "http://127.0.0.1:8000", "model": "tiny", "exercised": True,
        "healed_by_bypass": True, "ended": "reproduced", "seconds": 12.4, "started_at": 1796050900.0, "bypass": {"by": "cache_salt"},
        "cache": {"family": "vllm", "full_by": "1297 new tokens, it holds 1024", "capacity_tokens": 1024, "new_tokens": 9931.0}, "arms": [], "trials": TRIALS,
        "prompts": [{"index": 0, "line": 1, "id": None, "kind": "completions", "stable": True, "expect_met": None, "good": GOOD}], **facts,
    }  # fmt: skip


@pytest.mark.parametrize(("verdict", "exercised", "first"), [
    ("no-failure", True, "CLEAR: the prefix cache experiment found no failure; "),
    ("not-exercised", False, "CLEAR: nothing found, but the experiment did not test the prefix cache; "),
    ("reproduced", True, "CONFIRMED kv-hit-corrupt: prompt 0"),
])  # fmt: skip
def test_the_first_line_says_what_the_experiment_found(tmp_path: Path, verdict: str, exercised: bool, first: str) -> None:
    facts = {} if verdict == "reproduced" else {"trials": [trial("baseline", 2), trial("pressure", 1)], "healed_by_bypass": None}
    found = diagnosed(tmp_path, document(verdict=verdict, exercised=exercised, **facts))
    lead, subject = headline(found)
    said = f"{lead}: {subject}" if subject else lead
    assert said.startswith(first), said


def diagnosed(folder: Path, *documents: Mapping[str, object], further: tuple[Path, ...] = ()) -> Diagnosis:
    paths = [folder / f"repro-{number}.json" for number in range(len(documents))]
    for path, found in zip(paths, documents, strict=True):
        path.write_text(json.dumps(found))
    (found,) = analysis.analyse([*further, *paths], RULES)
    return found


def shown(found: Diagnosis, width: int = 100) -> str:
    return text.render(found, full=True, width=width).plain


def words(shown_: str) -> str:
    """Without line breaks."""
    return " ".join(shown_.split())


def test_the_experiment_is_told_in_the_report(tmp_path: Path) -> None:
    lines = shown(diagnosed(tmp_path, document())).splitlines()
    start = lines.index("Experiment with the prefix cache of http://127.0.0.1:8000")
    told = lines[start : lines.index("", start)]
    table = told.index("    arm       requests  asked again  cache hits  wrong  noise  first wrong")
    assert told[table + 1 : table + 4] == [
        "    baseline  2         1            1           0      0      -",
        "    control   2         1            1           0      0      -",
        "    pressure  11        5            5           1      1      request 4: different",
    ]
    good = next(place for place, line in enumerate(told) if line.startswith("    good"))
    assert told[good : good + 2] == ["    good  … is low and the night crew has left for home", "    bad   … is low and the night crew has I cannot tell from this text."]
    all_of_it = words("\n".join(told))
    for sentence in (
        "REPRODUCED (model tiny, 15 requests in 12 s).",
        "First wrong answer: request 4 of the pressure arm, prompt 0 (line 1): another one than the good one; 80 of 92 tokens of it came from the cache.",
        "It sticks: repeated at once it was wrong 2 of 3 times; asked later, with other requests between, it was wrong 1 of 2 times.",
        "Healed: with the cache bypassed the same question was right, 2 times; so neither the model nor the prompt is at fault.",
        "In the engine's log it is request cmpl-p4: grep -nwF -e cmpl-p4 -e llmdiag-5ee1-4 ENGINE_LOG",
        "The hit path was exercised: cached blocks were used after the cache had been full (seen by 1297 new tokens, it holds 1024).",
        "Noise: odd answers of which that is not true.",
    ):
        assert sentence in all_of_it, all_of_it


def test_what_nothing_came_of_says_why(tmp_path: Path) -> None:
    calm = [item for item in TRIALS if item["ordinal"] in (1, 2)]
    clear = document(verdict="no-failure", because=["the cache was full, and 20 re-asks used cached blocks after that"], trials=calm, healed_by_bypass=None)
    blind = document(verdict="not-exercised", because=["no re-ask used cached blocks", "nothing shows that the cache was ever full"], exercised=False, trials=calm)
    said = words(shown(diagnosed(tmp_path, clear, blind)))
    assert "NO FAILURE, though the cache was put to the test (model tiny" in said and "The cache was full, and 20 re-asks used cached blocks after that." in said
    assert "NOT EXERCISED: that nothing failed means nothing" in said and "No re-ask used cached blocks; nothing shows that the cache was ever full." in said
    assert said.count("First wrong answer") == 0 and said.count("arm requests asked again") == 2


def test_a_run_that_ended_early_and_one_without_answers(tmp_path: Path) -> None:
    bare = [{**item, "excerpt": None, "request": None, "sent": None} for item in TRIALS if item["ordinal"] in (1, 2, 4)]
    prompts = [{"index": 0, "line": 1, "good": None}]
    said = words(shown(diagnosed(tmp_path, document(trials=bare, prompts=prompts, exercised=False, cache={}))))
    assert "(not kept: the experiment was run with --no-answers)" in said and "ENGINE_LOG" not in said
    assert "Whether it sticks is not known: it was not asked again after that." in said
    assert "The hit path was NOT shown to be exercised in a full cache (nothing shows that it was ever full)" in said


def test_the_map_is_the_one_of_compare_dumps_and_says_how_it_is_read() -> None:
    (found,) = analysis.analyse([INCIDENT], RULES)
    section = next(item for item in found.sections if item.title.startswith("KV cache of the bad run (bad) beside the good one (good)"))
    lines = shown(found).splitlines()
    pairs = json.loads((INCIDENT / "comparison.json").read_text())["pairs"]
    assert section.parts[0].drawn[0].split() == ["layer", *(str(block) for block in sorted({pair["block"] for pair in pairs if pair["layer"] is not None and pair["block"] is not None}))]
    for layer in range(3):
        mine = [pair for pair in pairs if pair["layer"] == layer and pair["block"] is not None]
        signs = [
            heatmap.SIGNS[min((pair["verdict"] for pair in mine if pair["block"] == block), key=heatmap.WORST.index)] for block in sorted({pair["block"] for pair in mine})
        ]
        row = section.parts[0].drawn[1 + layer].split()
        assert row[: 1 + len(signs)] == [str(layer), *signs]
        assert float(row[row.index("cos") + 1]) == pytest.approx(min(pair["cosine"] for pair in mine), rel=0.01)
        assert f"    {section.parts[0].drawn[1 + layer]}" in lines
    assert "a another request's" in section.parts[0].drawn[-1]
    assert "one sign for each block of the prompt and layer" in words(shown(found))


def test_a_wide_cache_is_drawn_in_the_width_of_a_ticket() -> None:
    cells = [
        {"good_dump": "g", "bad_dump": "b", "layer": layer, "block": block, "worst": heatmap.WORST.index("nan" if block == 3000 else "same"), "rel_l2": 0.0, "cosine": 1.0}
        for layer in range(64) for block in range(4096)
    ]  # fmt: skip
    (section,) = kv_map.sections({"cells": cells})
    assert max(map(cell_len, section.parts[0].drawn)) <= sections.WIDTH
    assert len(section.parts[0].drawn) < 50
    assert "~ further blocks like the one before" in section.parts[0].drawn[-1]
    assert any(line.split()[0] == "0-63" and "N" in line for line in section.parts[0].drawn[1:])
    same = [{**cell, "worst": heatmap.WORST.index("same")} for cell in cells[:8]]
    (section,) = kv_map.sections({"cells": same})
    assert [part.text for part in section.parts] == ["Every block is the same, bit for bit, in every layer."]


def test_every_format_tells_it(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, document(), further=(INCIDENT,))
    shown_ = markdown.render(found)
    assert "## Experiment with the prefix cache of http:\u200b//127.0.0.1:8000" in shown_
    assert "- good: `… is low and the night crew has left for home`\n- bad: `… is low" in shown_
    assert "```text\narm       requests  asked again" in shown_ and "```text\nlayer  0 1 2" in shown_
    assert "```sh\ngrep -nwF -e cmpl-p4 -e llmdiag-5ee1-4 ENGINE_LOG\n```" in shown_
    assert json_.render(found)["sections"] == [
        {"title": item.title, "parts": [{"text": part.text, "label": part.label, "drawn": list(part.drawn), "run": part.run} for part in item.in_words()]}
        for item in found.sections if item.in_words()
    ]  # fmt: skip


def test_what_a_folded_symptom_adds_is_told_with_its_cause(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, document(), further=(INCIDENT,))
    assert (found.findings[0].rule, "kv-hit-corrupt" in found.folded["prefix-block-mismatch"]) == ("prefix-block-mismatch", True)
    adds = "hit wrong, miss right: with 80 of 92 tokens from the cache prompt 0 is answered otherwise than it should be (request cmpl-p4), with none from the cache rightly"
    assert f"explains kv-hit-corrupt: {adds}" in words(shown(found))
    assert f"kv-hit-corrupt: {adds[:60]}" in words(text.render(found).plain), "and on the first screen"
    assert f"- kv-hit-corrupt: `{adds}`" in markdown.render(found)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_too_wide(tmp_path: Path, width: int) -> None:
    lines = shown(diagnosed(tmp_path, document(url="http://" + "x" * 200), further=(INCIDENT,)), width).splitlines()
    assert max(map(cell_len, lines)) <= width


def test_without_the_tables_there_is_no_section() -> None:
    for sample in ("prefix-cache/hole-in-lookup", "vllm-0.32-cpu/busy"):
        if (SAMPLES / sample).exists():
            (found,) = analysis.analyse([SAMPLES / sample], RULES)
            titles = [item.title for item in found.sections]
            assert not [title for title in titles if title.startswith(("Experiment", "KV cache", "Cached values"))], titles


def test_every_module_of_the_folder_is_a_section() -> None:
    found = sections.discover()
    assert {module.__name__ for module in found} == {prefix_experiment.__name__, kv_map.__name__} | {module.__name__ for module in found}  # type: ignore[attr-defined]
    assert [module.ORDER for module in found] == sorted(module.ORDER for module in found)
    names = {path.stem for path in Path(sections.__file__).parent.glob("[!_]*.py")}
    assert {module.__name__.rpartition(".")[2] for module in found} == names  # type: ignore[attr-defined]


def test_a_section_gets_the_rows_of_its_selects_and_is_left_out_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        __name__ = "counting"
        ORDER = 1
        READS: ClassVar = {"runs": "SELECT verdict FROM prefix_runs"}

        def sections(self, rows: Mapping[str, Any]) -> Iterator[Section]:
            yield Section("Runs", (Part(", ".join(row["verdict"] for row in rows["runs"])),))

    monkeypatch.setattr(sections, "discover", lambda: (Counting(),))
    assert sections.of(evidence.open_paths([HITS_WRONG])) == (Section("Runs", (Part("reproduced"),)),)
    assert sections.of(evidence.open_paths([INCIDENT])) == ()


def test_answers_are_shortened_where_they_are_alike() -> None:
    assert beside("short", "other") == ("short", "other")
    assert beside(GOOD, "") == (GOOD, "(empty)")
    assert beside(None, "x") == (None, "x") and beside("x", None) == ("x", None)
    common = "word " * 12
    assert beside(f"{common}left", f"{common}right") == (f"… {'word ' * 6}left", f"… {'word ' * 6}right")
    assert beside(common + "and more", common.rstrip())[1].endswith("word"), "a cut answer is shown up to where it ends"
    long, cut = beside("a" * 150 + "b" * 50, "a" * 150 + "c" * 10)
    assert long == "… " + "a" * answers.SHARED_CHARS + "b" * 50 + "…" and cut == "… " + "a" * answers.SHARED_CHARS + "c" * 10
    assert beside("x" * 199, None)[0] == "x" * answers.SHOWN_CHARS + "…"


@pytest.mark.parametrize(("request_id", "sent", "line", "is_found"), [
    ("cmpl-49", "llmdiag-ab-49", "schedule prefill, requestId=cmpl-49", True),
    ("cmpl-49", "llmdiag-ab-49", "schedule prefill, requestId=cmpl-490", False),
    ("cmpl-llmdiag-ab-4", "llmdiag-ab-4", "Received request cmpl-llmdiag-ab-4-0: params", True),
    ("cmpl-llmdiag-ab-4", "llmdiag-ab-4", "Received request cmpl-llmdiag-ab-41-0: params", False),
    ("a'b $(touch x)", None, "rid=a'b $(touch x)", True),
])  # fmt: skip
def test_the_printed_grep_finds_the_request(tmp_path: Path, request_id: str, sent: str | None, line: str, is_found: bool) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"other\n{line}\n")
    argv = [str(log) if word == "ENGINE_LOG" else word for word in shlex.split(grep(request_id, sent))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == ((0, f"2:{line}\n") if is_found else (1, "")), done
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine.log"]
