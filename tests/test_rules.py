"""Rules are read strictly, and every rule is tried on every sample."""

import shutil
import tomllib
from pathlib import Path

import pytest

from diag import analysis, engine, evidence, rules, ruletest
from diag.errors import RuleError
from diag.model import Diagnosis
from diag.sources import sources_of
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

GOOD = '''
schema = 1
id = "mine"
title = "t"
severity = "low"
about = "a"
[[signals]]
id = "one"
role = "required"
says = "{name}"
sql = "SELECT name, source FROM threads"
[runbook]
confirm = "c"
stop_the_bleeding = "s"
fix = "f"
prevent = "p"
[[tests]]
sample = "x"
expect = "likely"
'''


def read(tmp_path: Path, text: str, name: str = "mine") -> rules.Rule:
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return rules.read(path)


def test_a_good_rule(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD).signals[0].role == "required"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("schema = 1", "schema = 2"), r"mine\.toml: schema: 2 is newer"),
        (("schema = 1", 'schema = "1"'), r"mine\.toml: schema: must be the number"),
        (("schema = 1", "schema = true"), r"mine\.toml: schema: must be the number"),
        (('id = "mine"', 'id = "other"'), r"id: 'other' must be the file name 'mine'"),
        (('severity = "low"', 'severity = "huge"'), r"severity: Invalid enum value 'huge'"),
        (('about = "a"', 'about = "a"\nabuot = "b"'), r"unknown field `abuot`"),
        (('role = "required"', 'role = "needed"'), r"signals\.one\.role: Invalid enum value 'needed'"),
        (('role = "required"', 'role = "required"\nnaer = "x"'), r"signals\.one: .*unknown field `naer`"),
        (('role = "required"', 'role = "support"'), r"at least one must have the role 'required'"),
        (('says = "{name}"', 'says = "{name.x}"'), r"signals\.one\.says: \{name\.x\} is not a plain column name"),
        (('says = "{name}"', 'says = "{name"'), r"signals\.one\.says"),
        (('says = "{name}"', 'says = "{name:999999999999d}"'), r"signals\.one\.says: \{name:999999999999d\} makes a text that is too wide"),
        (('says = "{name}"', 'says = "{name:.9999f}"'), r"signals\.one\.says: .* too wide"),
        (('says = "{name}"', 'says = "{name:{width}}"'), r"signals\.one\.says: .* depends on a value"),
        (('sample = "x"', 'sample = "../x"'), r"tests: the sample '\.\./x' is no plain path below the samples"),
        (('sample = "x"', 'sample = "a/../../x"'), r"tests: the sample"),
        (('sample = "x"', 'sample = "/etc"'), r"tests: the sample '/etc'"),
        (('sample = "x"', 'sample = ""'), r"tests: the sample ''"),
        (('says = "{name}"', 'says = "x"\nnear = "SELECT 1"'), r"near and near_says go together"),
        (('says = "{name}"', 'says = "x"\nexcused_by = "nobody"'), r"no signal 'nobody'"),
        (('title = "t"', 'title = "t"\ntitle = "u"'), r"mine\.toml: "),
        (('confirm = "c"', ""), r"runbook: .*confirm"),
    ],
)
def test_a_bad_rule_names_file_and_key(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(RuleError, match=says):
        read(tmp_path, GOOD.replace(*change, 1))


def test_not_a_toml_file(tmp_path: Path) -> None:
    for data in (b"\xff\xfe", b"= x", b"[[signals"):
        path = tmp_path / "mine.toml"
        path.write_bytes(data)
        with pytest.raises(RuleError, match=r"mine\.toml"):
            rules.read(path)


@pytest.mark.parametrize("args", [["rules", "test"], ["rules", "list"], ["analyze", str(SAMPLES / "ghost-key-retry-loop" / "incident.zip"), "--rules"]])
def test_a_folder_without_rules_is_an_error(tmp_path: Path, args: list[str]) -> None:
    said = llmdiag(*args, str(tmp_path))
    assert (said.code, said.out) == (2, "")
    assert f"no rules in {tmp_path}" in said.err


def test_an_error_of_a_rule_names_its_own_file(tmp_path: Path) -> None:
    shipped = (rules.shipped() / "cpu-spin.toml").read_text()
    assert "\nconfirm = '''\n" in shipped
    (tmp_path / "cpu-spin.toml").write_text(shipped.replace("\nconfirm = '''\n", "\nconfirm = '''\nkill {{ pdi }}\n"))
    said = llmdiag("rules", "test", "--rules", str(tmp_path))
    assert said.code == 2, said
    assert f"error: {tmp_path}/cpu-spin.toml: runbook.confirm: no column 'pdi'" in said.err, said.err


def test_showing_a_rule_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.toml").mkdir()
    for name, says in (("mine", "can't decode"), ("folder", "Is a directory"), ("n" * 300, "too long"), ("none", "no rule 'none'")):
        said = llmdiag("rules", "show", name, "--rules", str(tmp_path))
        assert said.code == 2, name
        assert says in said.err, said.err


SHIPPED = rules.load(rules.shipped())
COLLECTORS = evidence.collectors_of(evidence.Extras())


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.id)
def test_every_rule_has_a_match_and_a_look_alike(rule: rules.Rule) -> None:
    wanted = {test.expect for test in rule.tests}
    assert wanted & {"confirmed", "likely"}, f"{rule.id} has no sample that it matches"
    assert "not matched" in wanted, f"{rule.id} has no look-alike"


def all_samples() -> list[str]:
    """Every sample that a sample.toml describes."""
    return [
        f"{path.parent.relative_to(SAMPLES).as_posix()}/{name}"
        for path in sorted(SAMPLES.rglob("sample.toml"))
        for name in tomllib.loads(path.read_text())["samples"]
    ]


def test_every_recorded_file_is_described() -> None:
    bundles = {path.relative_to(SAMPLES).with_suffix("").as_posix() for path in SAMPLES.rglob("*.zip")}
    assert bundles <= set(all_samples())
    assert all("command" in tomllib.loads(path.read_text()) for path in SAMPLES.rglob("sample.toml"))


def judged(captures: list[evidence.Evidence], chosen: list[rules.Rule]) -> Diagnosis:
    """What these rules say of evidence that is loaded."""
    return analysis.best([engine.diagnose(found, chosen, {}, {}) for found in captures])


@pytest.mark.parametrize("sample", all_samples())
def test_matrix(sample: str) -> None:
    """Every rule on every sample: what the tests of the rules name, what those explain, and nothing else; and each of those rules alone.

    The evidence is loaded once for all of it.
    """
    sources = sources_of([ruletest.sample_path(sample, rules.shipped())], COLLECTORS)
    captures = [evidence.load(group, COLLECTORS) for group in analysis.captures(sources)]
    diagnosis = judged(captures, SHIPPED)
    named = {(rule.id, test.expect) for rule in SHIPPED for test in rule.tests if test.sample == sample}
    expected = {rule for rule, expect in named if expect in ("confirmed", "likely")}
    explained = {name for rule in SHIPPED if rule.id in expected for name in rule.explains}
    explained |= {rule.id for rule in SHIPPED if set(rule.explained_by) & expected}
    found = {result.rule: result.verdict for result in diagnosis.findings}
    assert expected <= set(found) | {name for names in diagnosis.folded.values() for name in names}
    assert set(found) <= expected | explained
    for rule, expect in named:
        got = ruletest.verdict_of(diagnosis, rule)
        alone = ruletest.verdict_of(judged(captures, [item for item in SHIPPED if item.id == rule]), rule)
        assert (got, alone) == (expect, expect), f"{rule} on {sample}: {got}, alone {alone}, expected {expect}"


def test_duckdb_takes_all_sql_of_every_rule() -> None:
    """Also that over tables which no sample fills; else it is not run where it cannot have rows."""
    diagnosis = engine.diagnose(evidence.load([], COLLECTORS, evidence.Extras(wary=True)), SHIPPED, {}, {})
    assert diagnosis.findings == ()


def test_no_sample_is_an_orphan() -> None:
    named = {test.sample for rule in SHIPPED for test in rule.tests}
    assert set(all_samples()) <= named, "a sample that no rule names proves nothing"


def test_the_shipped_tests_pass_as_a_user_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rules of them; what each rule says when it is alone on its samples is seen in the matrix."""
    some = [rule for rule in SHIPPED if rule.id in ("process-stopped", "service-silent")]
    monkeypatch.setattr(rules, "load", lambda place: some)
    found = ruletest.run(None)
    assert [(result.rule, result.sample) for result in found] == [(rule.id, test.sample) for rule in some for test in rule.tests]
    assert [result for result in found if not result.ok] == []


def test_a_rule_dropped_into_a_folder_works(tmp_path: Path) -> None:
    """No existing file is touched; the SQL of a stranger runs in the child process."""
    folder = tmp_path / "my-rules"
    folder.mkdir()
    text = GOOD.replace('sample = "x"', 'sample = "worker-stopped"').replace("FROM threads", "FROM threads WHERE state = 'T'")
    look_alike = '[[tests]]\nsample = "idle"\nexpect = "not matched"\n'
    (folder / "mine.toml").write_text(text + look_alike)
    for name in ("worker-stopped", "idle"):
        shutil.copytree(SAMPLES / "vllm-0.32-cpu" / name, folder / "samples" / name)
    assert [(r.rule, r.got, r.ok) for r in ruletest.run(folder)] == [("mine", "likely", True), ("mine", "not matched", True)]


