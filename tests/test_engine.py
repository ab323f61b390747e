"""The verdict logic: every sentence of the contract about signals, roles and verdicts."""

import duckdb
import msgspec
import pytest

from diag import engine
from diag.errors import RuleError, SqlError
from diag.model import SignalResult, SignalState, Verdict
from diag.report import explain
from diag.rules import ActionTemplate, Rule, RuleTest, Runbook, Signal
from tests.conftest import MakeCase

HELD, EMPTY, UNSEEN = SignalState.HELD, SignalState.EMPTY, SignalState.UNSEEN
SPINNING = {"pid": 7, "tid": 7, "name": "loop", "read": 0}


def result(role: str, state: SignalState, name: str = "") -> SignalResult:
    return SignalResult(name or role, role, state)


def rule(*signals: Signal, name: str = "x", **keys: object) -> Rule:
    return Rule(
        schema=1, id=name, title="t", severity=keys.pop("severity", "high"), about="a", signals=signals,  # type: ignore[arg-type]
        runbook=Runbook("c {{ rows|length }}", "s", "f", "p"), tests=(RuleTest("s", "confirmed"),), **keys,  # type: ignore[arg-type]
    )


def signal(sql: str, role: str = "required", name: str = "sig", **keys: object) -> Signal:
    return Signal(name, role, keys.pop("says", "row"), sql, **keys)  # type: ignore[arg-type]


THREADS = "SELECT name, pid, tid, run_s, source FROM threads"


@pytest.mark.parametrize(
    ("signals", "verdict"),
    [
        ([("required", HELD), ("proof", HELD)], Verdict.CONFIRMED),
        ([("required", HELD)], Verdict.LIKELY),
        ([("required", HELD), ("proof", EMPTY)], Verdict.LIKELY),
        ([("required", HELD), ("proof", UNSEEN)], Verdict.LIKELY),
        ([("required", HELD), ("required", EMPTY), ("proof", HELD)], Verdict.NOT_MATCHED),
        ([("required", UNSEEN), ("required", EMPTY)], Verdict.NOT_MATCHED),
        ([("required", HELD), ("proof", HELD), ("against", HELD)], Verdict.NOT_MATCHED),
        ([("required", UNSEEN), ("against", HELD)], Verdict.NOT_MATCHED),
        ([("required", HELD), ("required", UNSEEN), ("proof", HELD)], Verdict.INCONCLUSIVE),
        ([("required", HELD), ("proof", HELD), ("against", UNSEEN)], Verdict.LIKELY),
        ([("required", HELD), ("proof", HELD), ("against", EMPTY)], Verdict.CONFIRMED),
        ([("required", HELD), ("proof", HELD), ("support", UNSEEN)], Verdict.CONFIRMED),
        ([("required", HELD), ("proof", HELD), ("support", EMPTY)], Verdict.CONFIRMED),
        ([("required", HELD), ("proof", HELD), ("proof", EMPTY)], Verdict.CONFIRMED),
    ],
)
def test_verdicts(signals: list[tuple[str, SignalState]], verdict: Verdict) -> None:
    assert engine.decide([result(role, state, f"{role}{n}") for n, (role, state) in enumerate(signals)], {}) is verdict


def test_an_excused_against_does_not_cap() -> None:
    signals = [result("required", HELD), result("proof", HELD), result("against", UNSEEN)]
    assert engine.decide(signals, {"against": "required"}) is Verdict.CONFIRMED
    assert engine.decide(signals, {"against": "not-held"}) is Verdict.LIKELY


def test_rows_are_the_evidence(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    found = engine.look(case, rule(), signal(THREADS, says="{name} of {pid}: {run_s:.0f} s"))
    assert found.state is HELD
    assert found.says == ("loop of 7: unknown s",)
    assert found.rows[0]["source"] == "rows/rows.jsonl:1"


def test_empty_and_collected_is_a_look(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    found = engine.look(case, rule(), signal(f"{THREADS} WHERE pid = 8", near=THREADS, near_says="{name} is near"))
    assert (found.state, found.near) == (EMPTY, "loop is near")


def test_empty_and_not_collected_is_no_look(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    found = engine.look(case, rule(), signal("SELECT source FROM sockets"))
    assert (found.state, found.unseen_tables) == (UNSEEN, ("sockets",))


def test_a_failed_source_makes_a_table_not_collected(make_case: MakeCase) -> None:
    case = make_case({}, ["threads"], {"threads": "no permission"})
    found = engine.look(case, rule(), signal(THREADS))
    assert (found.state, found.because) == (UNSEEN, "no permission")


def test_zero_rows_of_a_read_table_is_a_look(make_case: MakeCase) -> None:
    assert engine.look(make_case({}, ["gpu_devices"]), rule(), signal("SELECT source FROM gpu_devices")).state is EMPTY


def test_a_column_that_was_not_read_is_no_look(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    found = engine.look(case, rule(), signal(f"{THREADS} WHERE run_s > 3"))
    assert (found.state, found.unseen_tables) == (UNSEEN, ("threads.run_s",))


def test_null_with_a_meaning_is_a_look(make_case: MakeCase) -> None:
    case = make_case({"cache_keys": [{"key": "a", "verdict": "ok"}]}, ["cache_keys"])
    assert engine.look(case, rule(), signal("SELECT source FROM cache_keys WHERE ttl_s > 3")).state is EMPTY


def test_rows_count_even_from_a_table_that_is_incomplete(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"], {"threads": "partly"})
    assert engine.look(case, rule(), signal(THREADS)).state is HELD


def test_views_are_expanded_to_the_tables_they_rest_on(make_case: MakeCase) -> None:
    case = make_case({}, ["stack_frames"])
    found = engine.look(case, rule(), signal("SELECT source FROM thread_activity"))
    assert found.unseen_tables[0] in ("thread_states", "threads")


@pytest.mark.parametrize("template", ["{name.__class__}", "{name[0]}", "{0}", "{}"])
def test_fields_reach_no_attributes(make_case: MakeCase, template: str) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    with pytest.raises(RuleError):
        engine.look(case, rule(), signal(THREADS, says=template))


@pytest.mark.parametrize(("text", "said"), [
    ("{read:# line}", "1 line"), ("{pid:# line} of it", "7 lines of it"), ("{read:# entry|entries}", "1 entry"), ("{pid:# entry|entries}", "7 entries"), ("{run_s:# time}", "unknown times"),
])
def test_counts_are_told_in_the_right_number(make_case: MakeCase, text: str, said: str) -> None:
    case = make_case({"threads": [{**SPINNING, "read": 1}]}, ["threads"])
    assert engine.look(case, rule(), signal(THREADS.replace("SELECT", "SELECT read,"), says=text)).says == (said,)


def test_unknown_field_and_bad_format_name_rule_and_signal(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    for template in ("{nonsuch}", "{name:.0f}"):
        with pytest.raises(RuleError, match=r"rules/x\.toml: signal sig: says"):
            engine.look(case, rule(), signal(THREADS, says=template))


def test_unknown_tables_are_a_rule_error(make_case: MakeCase) -> None:
    with pytest.raises(SqlError, match=r"signal sig: no such table: nonsuch"):
        engine.look(make_case({}), rule(), signal("SELECT * FROM nonsuch"))


def test_at_most_a_thousand_rows_and_more(make_case: MakeCase) -> None:
    case = make_case({"threads": [{**SPINNING, "tid": n} for n in range(1100)]}, ["threads"])
    found = engine.look(case, rule(), signal(THREADS))
    assert (len(found.rows), found.more) == (1000, True)


def test_action_values_are_shell_quoted_and_never_from_elsewhere(make_case: MakeCase) -> None:
    case = make_case({"threads": [{**SPINNING, "name": "a; rm -rf /"}]}, ["threads"])
    action = ActionTemplate("do", "llmdiag x {name} {bundle} {target} {evidence}", "undo {backup}")
    found = engine.judge(case, rule(signal(THREADS), actions=(action,)), {"bundle": "my bundle.zip", "evidence": ("my bundle.zip", "x.log")})
    assert found.actions[0].run == "llmdiag x 'a; rm -rf /' 'my bundle.zip' TARGET 'my bundle.zip' x.log"
    assert found.actions[0].undo == "undo BACKUP"


def test_runbooks_see_the_rows(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    assert engine.judge(case, rule(signal(THREADS)), {}).runbook["confirm"] == "c 1"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("kill {{ rows.sig[0].pdi }}", "rules/x.toml: runbook.confirm: no 'pdi' among name, pid"),
        ("{% for row in rows.sig %}kill {{ row.pdi }}{% endfor %}", "no 'pdi' among name"),
        ("{% if rows.sgi %}kill{% endif %}", "no 'sgi' among sig"),
        ("kill {{ pdi }}", "rules/x.toml: runbook.confirm: no column 'pdi'"),
    ],
)
def test_a_mistyped_name_in_a_runbook_is_an_error(make_case: MakeCase, template: str, says: str) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    with pytest.raises(RuleError) as error:
        engine.judge(case, msgspec.structs.replace(rule(signal(THREADS)), runbook=Runbook(template, "s", "f", "p")), {})
    assert says in str(error.value)


def test_what_only_an_unheld_signal_tells_is_unknown(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    template = "{{ other }} {{ pid }} {{ bundle }} {{ other or 'it' }}{% if rows.more %}x{% endif %}{% for row in rows.more[:1] %}x{% endfor %}"
    asked = rule(signal(THREADS), signal("SELECT pid AS other, source FROM threads WHERE pid < 0", "support", "more"))
    found = engine.judge(case, msgspec.structs.replace(asked, runbook=Runbook(template, "s", "f", "p")), {})
    assert found.runbook["confirm"] == f"unknown {SPINNING['pid']} unknown it"


def diagnose(case: object, *rules: Rule) -> object:
    return engine.diagnose(case, rules, {}, {})  # type: ignore[arg-type]


def test_overall_verdicts(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    held, miss, blind = signal(THREADS, name="a"), signal(f"{THREADS} WHERE pid = 8", name="b"), signal("SELECT source FROM sockets", name="c")
    assert engine.diagnose(case, [rule(held)], {}, {}).verdict == "matched"
    assert engine.diagnose(case, [rule(miss)], {}, {}).verdict == "clear"
    assert engine.diagnose(case, [rule(held, blind)], {}, {}).verdict == "inconclusive"
    assert engine.diagnose(case, [rule(miss), rule(blind, name="y")], {}, {}).verdict == "clear"
    assert engine.diagnose(case, [rule(blind)], {}, {}).verdict == "inconclusive"


@pytest.mark.parametrize(("subject", "verdict"), [
    ({"deaths": ["2026-11-30 02:41:10Z the engine died"]}, "inconclusive"), ({"deaths": []}, "clear"),
    ({"unrecognised": ["a", "b"], "handed_in": 3}, "inconclusive"), ({"unrecognised": ["a", "b"], "handed_in": 4}, "clear"),
])
def test_a_death_and_mostly_unknown_files_are_not_clear(make_case: MakeCase, subject: dict[str, object], verdict: str) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    assert engine.diagnose(case, [rule(signal(f"{THREADS} WHERE pid = 8"))], {}, subject).verdict == verdict
    assert engine.diagnose(case, [rule(signal(THREADS))], {}, subject).verdict == "matched"


def test_ranking_cause_before_symptom_confirmed_before_likely_then_severity(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    need, proof = signal(THREADS, name="a"), signal(THREADS, role="proof", name="b")
    rules = [
        rule(need, name="likely-critical", severity="critical"),
        rule(need, proof, name="confirmed-medium", severity="medium"),
        rule(need, proof, name="symptom-confirmed", severity="critical", explained_by=("not-here",)),
        rule(need, name="likely-high"),
    ]
    order = [found.rule for found in engine.diagnose(case, rules, {}, {}).findings]
    assert order == ["confirmed-medium", "likely-critical", "likely-high", "symptom-confirmed"]


@pytest.mark.parametrize(("notes", "verdict"), [({}, "clear"), ({"gpu_devices": "denied"}, "inconclusive"), ({"gpu_processes": "denied"}, "clear")])
def test_a_few_judged_rules_do_not_acquit_of_those_whose_evidence_could_not_be_read(
    make_case: MakeCase, notes: dict[str, str], verdict: str
) -> None:
    """What was not handed in is another matter."""
    case = make_case({}, ["threads"], notes)
    judged, blind = rule(signal(THREADS), name="judged"), [rule(signal("SELECT * FROM gpu_devices"), name=f"blind-{n}") for n in range(3)]
    assert engine.diagnose(case, [judged, *blind], {}, {}).verdict == verdict
    assert engine.diagnose(case, [judged, blind[0]], {}, {}).verdict == "clear"
    assert engine.diagnose(case, blind, {}, {}).verdict == "inconclusive"


@pytest.mark.parametrize(("doubted", "state", "rows"), [
    (["'threads'", "NULL"], SignalState.HELD, 1), (["NULL", "NULL"], SignalState.HELD, 2), (["'threads'", "'cache_keys.verdict'"], SignalState.UNSEEN, 0),
])
def test_rows_in_doubt_do_not_hold(make_case: MakeCase, doubted: list[str], state: SignalState, rows: int) -> None:
    """A row with `unseen` says what it would take to know."""
    case = make_case({"threads": [SPINNING]}, ["threads"])
    sql = " UNION ALL ".join(f"SELECT pid, source, {table} AS unseen, 'nobody asked' AS because FROM threads" for table in doubted)
    asked = signal(sql)
    found = engine.look(case, rule(asked), asked)
    assert (found.state, len(found.rows)) == (state, rows)
    assert all("unseen" not in row and "because" not in row for row in found.rows)
    if state is SignalState.UNSEEN:
        assert (found.unseen_tables, found.because) == (("cache_keys.verdict", "threads"), "nobody asked")


def test_symptoms_fold_under_their_cause(make_case: MakeCase) -> None:
    case = make_case({"threads": [SPINNING]}, ["threads"])
    need = signal(THREADS, name="a")
    by_cause = engine.diagnose(case, [rule(need, name="cause", explains=("symptom",)), rule(need, name="symptom", severity="critical")], {}, {})
    by_symptom = engine.diagnose(case, [rule(need, name="cause"), rule(need, name="symptom", severity="critical", explained_by=("cause",))], {}, {})
    for found in (by_cause, by_symptom):
        assert [item.rule for item in found.findings] == ["cause"]
        assert found.folded["cause"] == ("symptom",)
        assert [item.rule for item in found.explained] == ["symptom"]
        explained = explain.facts(found, "symptom")
        assert explained is not None
        assert (explained["folded_under"], explained["verdict"], len(explained["signals"])) == ("cause", "likely", 1)  # type: ignore[arg-type]


def test_the_connection_is_locked(make_case: MakeCase, tmp_path: object) -> None:
    case = make_case({})
    for sql in (f"COPY (SELECT 1) TO '{tmp_path}/x'", "SELECT * FROM read_csv('/etc/passwd')", "ATTACH '/tmp/x.db'", "INSTALL httpfs", "SET threads = 1", "SELECT * FROM '/etc/passwd'"):
        with pytest.raises(duckdb.Error):
            case.connection.execute(sql)


def test_frames_of_the_caller_are_not_visible(make_case: MakeCase) -> None:
    import pandas as pd

    case = make_case({})
    secret = pd.DataFrame({"a": [1]})
    assert len(secret) == 1
    with pytest.raises(duckdb.Error):
        case.connection.execute("SELECT * FROM secret")
