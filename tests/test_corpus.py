"""The index of the samples is true, the score counts what it says, and leaving out a part of a rule is noticed."""

import tomllib
from dataclasses import replace

import pytest

from diag import rules
from tests.corpus import index, mutation
from tests.corpus.__main__ import first_run
from tests.corpus.score import Judged, confusion, score


def test_the_index_says_what_the_samples_and_rules_say() -> None:
    known = {entry["name"]: entry for entry in tomllib.loads(index.INDEX.read_text("utf-8"))["sample"]}
    wanted = {entry["name"]: entry for entry in index.entries()}
    assert known == wanted, "python -m tests.corpus.index writes it anew"


ONE = Judged("a", ("x",), False, "lab", (("x", "confirmed"),), frozenset())


@pytest.mark.parametrize(("judged", "right", "accuses"), [
    (ONE, True, False),
    (replace(ONE, found=(("y", "likely"), ("x", "confirmed"))), False, True),
    (replace(ONE, found=(("x", "likely"), ("y", "confirmed"))), True, False),
    (replace(ONE, found=()), False, False),
    (replace(ONE, expect=(), found=()), True, False),
    (replace(ONE, expect=(), found=(("x", "likely"),)), False, True),
    (replace(ONE, expect=(), abstain=True, found=(("x", "likely"),)), True, False),
    (replace(ONE, expect=(), abstain=True, found=(("x", "confirmed"),)), False, True),
    (replace(ONE, expect=("x",), abstain=True, found=(("x", "confirmed"),)), True, False),
])
def test_what_counts_as_right_and_as_an_accusation(judged: Judged, right: bool, accuses: bool) -> None:
    assert (judged.is_right, judged.accuses) == (right, accuses)


def test_the_score_of_a_group() -> None:
    group = [ONE, replace(ONE, name="b", found=()), replace(ONE, name="c", expect=(), found=()), replace(ONE, name="d", expect=(), found=(("x", "likely"),))]
    found = score(group)
    assert (found.samples, found.incidents, found.right, found.silent, found.accused, found.top1_pct) == (4, 2, 1, 1, ("d",), 50.0)
    assert [one.name for one in found.wrong] == ["b", "d"]
    assert confusion(group) == {("x", "x"): 1, ("x", "(nothing)"): 1, ("(nothing)", "(nothing)"): 1, ("(nothing)", "x"): 1}


def test_the_first_run_over_the_held_out_cases_stays_on_record() -> None:
    found = score(first_run(sorted((index.SAMPLES / "held-out").glob("*/label.toml"))))
    assert (found.samples, found.incidents, found.right, found.silent) == (17, 13, 9, 2)
    assert found.accused == ("H07-soft-watchdog-on-healthy-pod", "L05-all-ranks-stop-after-upgrade", "S21-dump-of-a-corpse")


def test_terms_are_left_out_one_at_a_time_but_not_what_only_joins_rows_of_one_process() -> None:
    sql = """WITH a AS (SELECT pid FROM threads WHERE state = 'R' AND tid > 1)
    SELECT a.pid FROM a JOIN processes p ON p.pid = a.pid AND p.role = 'worker' WHERE p.rss_bytes > 5 GROUP BY a.pid HAVING count(*) > 1"""
    found = dict(mutation._without_terms(sql))
    assert set(found) == {"state = 'R'", "tid > 1", "p.role = 'worker'", "p.rss_bytes > 5", "COUNT(*) > 1"}
    assert "tid > 1" in found["state = 'R'"] and "state" not in found["state = 'R'"]
    assert "p.pid = a.pid" in found["p.role = 'worker'"]


def test_a_part_that_no_sample_needs_is_told() -> None:
    (rule,) = (rule for rule in rules.load(rules.shipped()) if rule.id == "process-stopped")
    name = "vllm-0.32-cpu/worker-stopped"
    loaded = {name: mutation.load(name)}
    changed = mutation._with(rule, 0, sql=rule.signals[0].sql.replace("ORDER BY s.pid", "WHERE s.pid > 0 ORDER BY s.pid"))
    left = mutation.survivors(changed, loaded)
    assert f"{rule.signals[0].id}: s.pid > 0" in left
    assert f"{rule.signals[0].id} (required)" not in left


def test_a_required_signal_matters_where_it_alone_keeps_a_diagnosis_open() -> None:
    (rule,) = (rule for rule in rules.load(rules.shipped()) if rule.id == "device-memory-taken")
    name = "device-memory/holder-not-listed"
    assert "did_not_start (required)" not in mutation.survivors(rule, {name: mutation.load(name)})


def test_public_cases_are_covered_and_a_cause_that_nobody_knows_is_never_confirmed() -> None:
    """At least 40 of them, with every one in which nothing is wrong; of those whose cause nobody knows no rule may confirm anything."""
    folder = index.SAMPLES / "public-cases"
    about = tomllib.loads((folder / "sample.toml").read_text("utf-8"))
    assert about["samples"].keys() == about["labels"].keys() == {path.name for path in folder.iterdir() if path.is_dir()}
    labels = about["labels"]
    assert [name for name, label in labels.items() if not (label["decides"] and label["naive"] and label["confidence"] in "CRU")] == []
    unknown = {name for name, label in labels.items() if label["confidence"] == "U"}
    confirmed = {test.sample.removeprefix("public-cases/") for rule in rules.load(rules.shipped()) for test in rule.tests if test.expect == "confirmed"}
    assert (unknown - {name for name in unknown if labels[name].get("abstain")}, unknown & confirmed) == (set(), set())
    covered = {entry["case"] for entry in tomllib.loads(index.INDEX.read_text("utf-8"))["sample"]} - {""}
    covered |= {tomllib.loads(path.read_text("utf-8"))["case"] for path in (index.SAMPLES / "held-out").glob("*/label.toml")}
    nothing_wrong = {"S25", "S27e", "L02", "L03", "L04", "L13", "M05", "G06", "G24", "H01", "H03", "H05", "H07", "H09"}
    assert len(covered) >= 40
    assert nothing_wrong - covered == set()
