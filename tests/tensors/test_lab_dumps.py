"""The lab's bad run through every dump format and float type: the same answer each time, and none where only rounding differs.

The truth comes from the engine itself: it knows which blocks were cached, and who wrote each of their rows.
"""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diag.tensors.compare import compare
from diag.tensors.dump import Dump
from diag.tensors.result import Comparison
from tests.cache import cli
from tests.conftest import SAMPLES
from tests.live.prefix_lab import GOOD, PROMPTS, variant
from tests.tensors.world import opened, settled

torch = pytest.importorskip("torch")
sys.path.append(str(SAMPLES / "prefix-block-mismatch"))
from kvlab import dumping  # noqa: E402
from kvlab.engine import Capture, Engine, Settings  # noqa: E402
from kvlab.engine import Result as Answer  # noqa: E402

pytestmark = pytest.mark.torch

DTYPES = ("float32", "float16", "bfloat16")
KINDS: tuple[dumping.Kind, ...] = ("pool", "blocks")
STRANGERS = 2
Entries = Sequence[dumping.Entry]


@dataclass
class Recorder:
    """The tensors of the latest request, as each kind of dump has them; `end` once more when the answer is complete."""

    found: dict[str, Entries] = field(default_factory=dict)

    def __call__(self, capture: Capture) -> None:
        kinds: Mapping[str, dumping.Kind] = {"pool": "pool", "blocks": "blocks"} if capture.at == "prefill" else {"cache": "cache", "end": "blocks"}
        for name, kind in kinds.items():
            self.found[name] = [dumping.Entry(one.op, one.place, one.tensor.clone(), one.layer) for one in dumping.entries(capture, kind)]

    def ask(self, engine: Engine, prompt: str) -> tuple[Answer, dict[str, Entries]]:
        self.found = {}
        engine.capture = self
        try:
            return engine.generate(prompt), self.found
        finally:
            engine.capture = None


@dataclass
class Incident:
    """A prompt that turned wrong, its tensors when it was right and now, and those of the requests that ran before."""

    right: dict[str, Entries]
    wrong: dict[str, Entries]
    answer: Answer
    others: dict[int, dict[str, Entries]]
    dtype: str

    @property
    def holes(self) -> list[int]:
        """Blocks that were taken from the cache and were not in it."""
        probes = self.answer.lookup.probes[: self.answer.lookup.binary]
        return [index for index, probe in enumerate(probes) if not probe.cached]

    def writers(self, block: int) -> list[int]:
        """Requests that wrote its rows, most rows first."""
        return [number for number, _ in Counter(self.answer.written_by[block]).most_common() if number]

    @property
    def donors(self) -> dict[int, dict[str, Entries]]:
        wanted = {number for hole in self.holes for number in self.writers(hole)}
        strangers = [number for number in self.others if number not in wanted][-STRANGERS:]
        return {number: self.others[number] for number in sorted({*wanted, *strangers})}


def press(dtype: str) -> Incident:
    """Variants with the prompts asked between them, until one is answered wrongly."""
    torch.set_num_threads(1)
    engine, chance, recorder = Engine(Settings(dtype=dtype)), random.Random(1), Recorder()
    right: dict[int, dict[str, Entries]] = {}
    others: dict[int, dict[str, Entries]] = {}
    for number in range(60):
        for index, prompt in enumerate(PROMPTS) if number % 5 == 0 else ():
            answer, tensors = recorder.ask(engine, prompt)
            if answer.text != GOOD[index]:
                return Incident(right[index], tensors, answer, others, dtype)
            right[index] = others[answer.number] = tensors
        answer, others[answer.number] = recorder.ask(engine, variant(chance))
    raise AssertionError("60 variants and no wrong answer")


@pytest.fixture(scope="module", params=DTYPES)
def incident(request: pytest.FixtureRequest) -> Incident:
    return press(request.param)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str, Entries], Dump]:
    def write(form: str, name: str, entries: Entries) -> Dump:
        (path,) = dumping.write(tmp_path, [form], name, entries)
        return opened(path)

    return write


def told(found: Comparison) -> dict[int, Counter[tuple[str, str | None]]]:
    """Block -> verdicts over all cache tensors, and whose it is."""
    blocks: dict[int, Counter[tuple[str, str | None]]] = defaultdict(Counter)
    for item in found.results:
        if item.block is not None:
            blocks[item.block][item.verdict, None if item.alias is None else item.alias.request] += 1
    return blocks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", dumping.FORMATS)
def test_the_same_verdict_through_every_format(incident: Incident, written: Callable[[str, str, Entries], Dump], form: str, kind: str) -> None:
    donor_kind = "end" if form == "atb" else "cache"  # its folder has hidden states in any case
    donors = [written(form, f"req-{number}", tensors[donor_kind]) for number, tensors in incident.donors.items()]
    found = compare(written(form, "good", incident.right[kind]), written(form, "bad", incident.wrong[kind]), others=donors)
    hole = incident.holes[0]
    assert found.verdict == "differ"
    assert found.first is not None
    assert (found.first.kind, found.first.result.layer, found.first.result.block) == ("bad-kv", 0, hole), found.first.says
    assert found.scope is not None
    assert (found.scope.points_at, list(found.scope.blocks)) == ("allocator", incident.holes), found.scope.says
    blocks = told(found)
    for number in incident.holes:
        assert set(blocks[number]) == {("aliased", f"req-{incident.writers(number)[0]}")}, f"block {number}: {blocks[number]}"
    later = [number for number in range(hole + 1, incident.answer.lookup.binary) if number not in incident.holes]
    assert later, "no block behind the hole was in the cache: the run shows less than it should"
    assert all(set(blocks[number]) == {("same", None)} for number in later), {number: blocks[number] for number in later}
    assert not found.unread
    assert not found.unpaired


def test_both_owners_of_a_block_are_named(incident: Incident, written: Callable[[str, str, Entries], Dump]) -> None:
    shared = [hole for hole in incident.holes if len(incident.writers(hole)) > 1]
    assert shared, "the run has no block with two owners any more: choose another seed"
    donors = [written("npy", f"req-{number}", tensors["cache"]) for number, tensors in incident.donors.items()]
    found = compare(written("npy", "good", incident.right["pool"]), written("npy", "bad", incident.wrong["pool"]), others=donors)
    rows = Counter(incident.answer.written_by[shared[0]])
    for item in found.results:
        if item.block == shared[0]:
            for owner, count in rows.items():
                assert f"{count} of " in (item.detail or "") and f"of req-{owner}" in (item.detail or ""), item.detail


@pytest.mark.parametrize("form", ["npy", "atb", "sglang"])
def test_without_donors_the_block_is_named_and_nobody_is_accused(incident: Incident, written: Callable[[str, str, Entries], Dump], form: str) -> None:
    found = compare(written(form, "good", incident.right["blocks"]), written(form, "bad", incident.wrong["blocks"]))
    assert found.first is not None and found.first.result.block == incident.holes[0]
    assert {alias.request for item in found.results if (alias := item.alias) is not None} == set()


def asked(dtype: str, batch: int, prompt: str = PROMPTS[0], times: int = 1) -> dict[str, Entries]:
    engine, recorder = Engine(Settings(dtype=dtype)), Recorder()
    engine.model.batch = batch
    found: dict[str, Entries] = {}
    for _ in range(times):
        _, found = recorder.ask(engine, prompt)
    return found


@pytest.mark.parametrize("form", ["npy", "safetensors", "atb"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_honest_batch_sizes_are_close(written: Callable[[str, str, Entries], Dump], dtype: str, form: str) -> None:
    alone, batched = asked(dtype, 1), asked(dtype, 8)
    for kind in KINDS:
        found = compare(written(form, "one", alone[kind]), written(form, "eight", batched[kind]))
        assert found.verdict == "close"
        assert found.first is None
        assert found.scope is None
        assert [item.name for item in found.results if item.doubt] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prefix_hit_is_the_same_as_the_full_computation(written: Callable[[str, str, Entries], Dump], dtype: str) -> None:
    full, hit = asked(dtype, 1), asked(dtype, 1, times=2)
    assert len(hit["pool"][0].tensor) < len(full["pool"][0].tensor), "the second request had no hit"
    for form in ("npy", "atb"):
        assert compare(written(form, "full", full["pool"]), written(form, "hit", hit["pool"])).verdict == "same"
        assert compare(written(form, "hit", hit["pool"]), written(form, "full", full["pool"])).verdict == "same"


@pytest.mark.parametrize("form", ["npy", "atb"])
def test_another_prompt_is_another_input_and_no_fault(written: Callable[[str, str, Entries], Dump], form: str) -> None:
    one, other = asked("bfloat16", 1), asked("bfloat16", 1, PROMPTS[1])
    found = compare(written(form, "one", one["pool"]), written(form, "other", other["pool"]))
    assert found.first is not None and found.first.kind == "input", found.first
    assert found.scope is None, found.scope


def test_honest_noise_has_no_finding(tmp_path: Path) -> None:
    for name, batch in (("one", 1), ("eight", 8)):
        settled(dumping.write(tmp_path, ["safetensors"], name, asked("bfloat16", batch)["pool"])[0])
    said = cli.run("compare-dumps", "safetensors/one", "safetensors/eight", cwd=tmp_path)
    assert said.code == 0, said.out + said.err
    assert said.out.startswith("CLOSE")
    assert "LIKELY" not in said.out and "CONFIRMED" not in said.out
