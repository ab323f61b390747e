"""The engine of the prefix lab: right answers, the failure by itself under pressure, and tensors that can be told apart."""

import random
from dataclasses import dataclass, field

import pytest

from tests.live.prefix_lab import GOOD, PROMPTS, variant

torch = pytest.importorskip("torch")
from kvlab import dumping  # noqa: E402
from kvlab.blocks import PoolFull  # noqa: E402
from kvlab.engine import Capture, Engine, Result, Settings  # noqa: E402
from kvlab.words import Words  # noqa: E402

pytestmark = pytest.mark.torch

DTYPES = ("float32", "float16", "bfloat16")
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
Tensors = dict[str, "torch.Tensor"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@dataclass
class Recorder:
    """Tensors of the requests that were asked through it."""

    engine: Engine
    kind: dumping.Kind = "blocks"
    found: list[Tensors] = field(default_factory=list)

    def __call__(self, capture: Capture) -> None:
        if (capture.at == "end") == (self.kind == "cache"):
            self.found.append({entry.name: entry.tensor.clone() for entry in dumping.entries(capture, self.kind)})

    def ask(self, prompt: str, salt: str = "") -> tuple[Result, Tensors]:
        self.engine.capture = self
        try:
            result = self.engine.generate(prompt, salt=salt)
        finally:
            self.engine.capture = None
        return result, self.found[-1]


@dataclass
class Failure:
    """A prompt that turned wrong, with its tensors when it was right and now."""

    prompt: int
    variants: int
    right: Tensors
    wrong: Tensors
    result: Result


def press(engine: Engine, seed: int, most: int = 60, every: int = 5) -> Failure | None:
    """Variants with the prompts asked between them, until one is answered wrongly."""
    chance, recorder = random.Random(seed), Recorder(engine)
    right: dict[int, Tensors] = {}
    for number in range(most):
        if number % every == 0:
            for index, prompt in enumerate(PROMPTS):
                result, tensors = recorder.ask(prompt)
                if result.text != GOOD[index]:
                    return Failure(index, number, right[index], tensors, result)
                right[index] = tensors
        engine.generate(variant(chance))
    return None


@pytest.mark.parametrize("dtype", DTYPES)
def test_prompts_are_answered_from_their_text(dtype: str) -> None:
    engine = Engine(Settings(dtype=dtype))
    for prompt, good in zip(PROMPTS, GOOD, strict=True):
        first, second = engine.generate(prompt), engine.generate(prompt)
        assert (first.text, first.cached_tokens, first.finish_reason) == (good, 0, "stop")
        assert (second.text, second.cached_tokens) == (good, (first.prompt_tokens - 1) // 16 * 16)
    assert engine.generate("What is the weather like").text == "I cannot tell from this text."
    assert engine.generate("one two three\nand one", max_tokens=1).finish_reason == "length"


def test_a_salt_keeps_requests_apart() -> None:
    engine = Engine()
    engine.generate(PROMPTS[0])
    assert [engine.generate(PROMPTS[0], salt="a").cached_tokens for _ in range(2)] == [0, 80]
    assert engine.generate(PROMPTS[0], salt="b").cached_tokens == 0
    assert engine.usage == 0


def test_what_does_not_fit_is_refused_and_harms_nobody() -> None:
    engine = Engine(Settings(blocks=8))
    with pytest.raises(PoolFull):
        engine.generate("word " * 200)
    assert engine.generate(PROMPTS[0]).text == GOOD[0]


def test_a_binary_search_answers_wrongly_under_pressure_and_goes_on_so() -> None:
    engine = Engine()
    failure = press(engine, seed=1)
    assert failure is not None, "60 variants and no wrong answer"
    again = [engine.generate(PROMPTS[failure.prompt]).text for _ in range(5)]
    assert set(again) == {failure.result.text}
    assert engine.generate(PROMPTS[failure.prompt], salt="past it").text == GOOD[failure.prompt]


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_wrong_block_is_the_hole_and_holds_what_an_earlier_request_wrote(order: str) -> None:
    failure = press(Engine(Settings(order=order)), seed=1)
    assert failure is not None, "60 variants and no wrong answer"
    probes = failure.result.lookup.probes[: failure.result.lookup.binary]
    hole = next(index for index, probe in enumerate(probes) if not probe.cached)
    assert (probes[hole].block is None) == (order == "before")
    assert failure.result.lookup.linear <= hole < failure.result.lookup.binary
    differ = differing_blocks(failure)
    assert differ[0] == hole, differ
    assert differ == [index for index, probe in enumerate(probes) if not probe.cached], "only holes differ, on all layers"
    assert failure.result.number not in failure.result.written_by[hole]
    assert any(failure.result.written_by[hole]), "the block was never written"


def differing_blocks(failure: Failure) -> list[int]:
    """Blocks of the hit range whose keys differ between the right and the wrong run; the same ones on every layer."""
    found = []
    for layer in range(3):
        keys = f"layers.{layer}.attn.input.k_cache"
        right, wrong = failure.right[keys], failure.wrong[keys]
        found.append([index for index in range(failure.result.lookup.binary) if not torch.equal(right[index], wrong[index])])
    assert found[0] == found[1] == found[2], found
    return found[0]


def test_a_walk_answers_rightly_under_the_same_pressure() -> None:
    engine = Engine(Settings(lookup="linear"))
    assert press(engine, seed=1) is None
    assert engine.counters.hits > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_cached_and_new_blocks_have_the_same_bits(dtype: str) -> None:
    recorder = Recorder(Engine(Settings(dtype=dtype)))
    (_, fresh), (_, hit) = recorder.ask(PROMPTS[0]), recorder.ask(PROMPTS[0])
    assert len(hit["positions"]) < len(fresh["positions"])
    for name in fresh:
        if name.endswith("_cache") or name == "lm_head.output.logits":
            assert torch.equal(fresh[name], hit[name]), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_batch_size_gives_close_tensors_and_the_same_answer(dtype: str) -> None:
    alone, batched = Recorder(Engine(Settings(dtype=dtype))), Recorder(Engine(Settings(dtype=dtype)))
    batched.engine.model.batch = 8
    (first, one), (second, other) = alone.ask(PROMPTS[0]), batched.ask(PROMPTS[0])
    assert first.text == second.text
    floats = [name for name in one if one[name].is_floating_point()]
    assert any(not torch.equal(one[name], other[name]) for name in floats)
    for name in floats:
        apart = float((one[name].double() - other[name].double()).norm() / one[name].double().norm())
        assert apart < TOLERANCE[dtype], f"{name}: {apart}"


def test_values_of_layer_0_tell_the_token_alone() -> None:
    recorder = Recorder(Engine())
    _, tensors = recorder.ask("north south north east north\nsouth north east west north south\nand north")
    ids = Words().encode("north south north east north\nsouth north east west north south\nand north")
    rows = {}
    for row, token in zip(tensors["layers.0.attn.input.v_cache"].flatten(0, 1), ids, strict=False):
        assert torch.equal(rows.setdefault(token, row), row)
    distinct = list(rows.values())
    assert len(distinct) >= 6
    assert not any(torch.equal(one, other) for at, one in enumerate(distinct) for other in distinct[:at])
    keys = tensors["layers.0.attn.input.k_cache"].flatten(0, 1)
    assert not torch.equal(keys[1], keys[3]), "keys tell the position, too"


def test_token_ids_do_as_well_as_text() -> None:
    engine = Engine()
    text = engine.generate(PROMPTS[1])
    ids = engine.generate(engine.words.encode(PROMPTS[1]))
    assert (ids.text, ids.prompt_tokens, ids.cached_tokens) == (text.text, text.prompt_tokens, 80)
