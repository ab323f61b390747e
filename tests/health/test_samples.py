"""Every shipped engine family has a text and three timelines, and what is said of them is right."""

import re
import tomllib
from pathlib import Path

import pytest

from diag.health import reads, witnesses
from diag.health.verdict import BackendVerdict, judge
from tests.health import write_samples

FOLDER = Path(__file__).parents[2] / "samples" / "health"
FAMILIES = witnesses.families()
SAYS = {"long-prefill": "progressing", "hang": "stalled", "restart": "restarted"}


def recorded(folder: Path) -> tuple[reads.Read, ...]:
    """The one sequence of a recorded folder."""
    listed = reads.records((folder / reads.LIST).read_bytes(), str(folder))
    (found,) = reads.by_backend([(item, None if item.file is None else (folder / item.file).read_bytes()) for item in listed]).values()
    return found


@pytest.mark.parametrize("name", sorted(SAYS))
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_timelines(family: witnesses.Family, name: str) -> None:
    found: BackendVerdict = judge(recorded(FOLDER / family.kind / name))
    assert found.state == ("busy-unproven" if (family.kind, name) == ("mindie", "long-prefill") else SAYS[name]), found.reason
    assert found.engine_kind == ("vllm" if family.companion else family.kind)


def test_no_family_without_samples_and_no_samples_without_family() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/metrics.txt")} == {family.kind for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_text_of_a_named_version(family: witnesses.Family) -> None:
    """What is in the data is in the text, with the type that its role wants; Triton declares its counter as a gauge."""
    text = (FOLDER / family.kind / "metrics.txt").read_text()
    samples, problem = reads.parse(text.encode())
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert problem == "" and set(re.findall(r"^# HELP (\S+) \S", text, re.M)) == set(types)
    known = [(sample, found) for sample in samples if (found := witnesses.find(sample.name, sample.labels)) is not None and found.family is family]
    roles = {found.witness.role for _, found in known}
    assert "progress" in roles and (family.companion or {"running", "waiting"} & roles)
    for sample, found in known:
        kind = types.get(sample.name) or types[re.sub("_(count|sum)$", "", sample.name)]
        wanted = {"progress": ("counter", "histogram"), "first_token": ("histogram",), "finished": ("counter",), "idle_loop": ("counter",)}
        assert kind in wanted.get(found.witness.role, ("gauge",)) or family.kind == "trtllm-triton", (sample.name, kind)
    (row,) = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith(f"| `{family.kind}` |")]
    assert any(version in row.split("|")[2] for version in family.versions), row


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_traps_are_no_witnesses(family: witnesses.Family) -> None:
    for trap in family.trap:
        labels = {"general_type": "timestamp"} if "timestamp" in trap.name else {}
        found = [witnesses.find(f"{prefix}{trap.name.partition('{')[0]}", labels) for prefix in family.prefixes]
        assert all(item is None or item.witness.role not in witnesses.PROGRESS for item in found), trap.name
        assert len(trap.why) > 10


def test_the_samples_are_what_their_writer_writes(tmp_path: Path) -> None:
    write_samples.write(tmp_path)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    shipped = {path.relative_to(FOLDER): path.read_bytes() for family in FAMILIES for path in (FOLDER / family.kind).rglob("*") if path.is_file()}
    assert written == shipped, "python -m tests.health.write_samples"


def test_they_are_marked_as_reconstructed() -> None:
    assert tomllib.loads((FOLDER / "sample.toml").read_text())["reconstructed"] is True
