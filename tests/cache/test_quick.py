"""The quick way and the slow way say the same: of names, of facts, of verdicts, on healthy and on damaged values."""

import io
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.cache.values.facts import facts_of
from diag.cache.values.naming import Names, like, named, page_of
from diag.cache.values.numbers_of import Halves
from diag.cache.values.profile import Profile, Sample, learn
from diag.cache.values.quick import Quick
from diag.cache.values.skeleton import learn as skeleton_of
from diag.cache.values.verdicts import judge

Dump = Callable[[np.ndarray], bytes]


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def in_dict(array: np.ndarray) -> bytes:
    return pickle.dumps({"embedding": array, "model": "clip", "dim": 512})


DUMPS: dict[str, Dump] = {
    "protocol 3": lambda array: pickle.dumps(array, 3),
    "protocol 4": lambda array: pickle.dumps(array, 4),
    "protocol 5": lambda array: pickle.dumps(array, 5),
    "npy": npy,
    "dict": in_dict,
}
DTYPES = ("f2", "f4", "f8", "i4", "u1")


def array(seed: int, dtype: str, width: int = 64) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(1, width)) * 40 + 100).astype(dtype)


def family(dump: Dump, dtype: str) -> tuple[Quick, list[bytes]]:
    """Sixty siblings, and what is known of them."""
    values = [dump(array(seed, dtype)) for seed in range(60)]
    profile = learn("f", [Sample(facts_of(value), None) for value in values])
    quick = Quick(profile, None)
    for value in values[:3]:
        quick.learn(value)
    return quick, values


FAMILIES = {(name, dtype): family(dump, dtype) for name, dump in DUMPS.items() for dtype in DTYPES}


@pytest.mark.parametrize(("name", "dtype"), FAMILIES)
def test_sound_siblings_are_known_at_a_glance(name: str, dtype: str) -> None:
    quick, values = FAMILIES[name, dtype]
    assert [quick.sound(memoryview(value)) for value in values] == [True] * len(values)


@pytest.mark.parametrize(("name", "dtype"), FAMILIES)
def test_facts_by_skeleton_are_the_facts(name: str, dtype: str) -> None:
    quick, values = FAMILIES[name, dtype]
    for value in values:
        form = quick.skeleton(memoryview(value))
        assert form is not None
        assert form.facts_of(value) == facts_of(value)


def damaged(draw: st.DrawFn, value: bytes, dtype: str, dump: Dump) -> bytes:
    """A value as a cache may hold it after something went wrong, or nothing did."""
    kind = draw(st.sampled_from(("flip", "cut", "add", "zero", "nan", "inf", "constant", "scale", "shape", "dtype", "splice", "one", "mostly zero")))
    at = draw(st.integers(0, len(value) - 1))
    numbers = array(at, dtype)
    if kind == "flip":
        return value[:at] + bytes([value[at] ^ draw(st.integers(1, 255))]) + value[at + 1 :]
    if kind == "cut":
        return value[:at]
    if kind == "add":
        return value + draw(st.binary(min_size=1, max_size=9))
    if kind == "splice":
        return value[:at] + draw(st.binary(max_size=6)) + value[at:]
    if kind == "zero":
        return dump(np.zeros((1, 64), dtype))
    if kind == "mostly zero":
        numbers = np.zeros((1, 64), dtype)
        numbers[0, at % 64] = 7
        return dump(numbers)
    if kind in ("nan", "inf") and dtype.startswith("f"):
        numbers[0, at % 64] = np.nan if kind == "nan" else -np.inf
        return dump(numbers)
    if kind == "constant":
        return dump(np.full((1, 64), 5, dtype))
    if kind == "scale":
        return dump((numbers * draw(st.sampled_from((0.001, 0.3, 0.7, 1.4, 1.6, 2.0, 30.0)))).astype(dtype))
    if kind == "shape":
        return dump(numbers.reshape(draw(st.sampled_from(((64,), (2, 32), (64, 1), (1, 1, 64))))))
    if kind == "dtype":
        return dump(numbers.astype(draw(st.sampled_from(("f2", "f4", "f8", "i2", "i8", ">f4", "?", "c8")))))
    return dump(numbers)


@st.composite
def one_value(draw: st.DrawFn) -> tuple[Quick, bytes]:
    name, dtype = draw(st.sampled_from(sorted(FAMILIES)))
    quick, values = FAMILIES[name, dtype]
    value = draw(st.sampled_from(values))
    return quick, damaged(draw, value, dtype, DUMPS[name])


@settings(max_examples=600, deadline=None)
@given(one_value(), st.sampled_from((None, 3.0, 86_400.0)))
def test_what_is_sound_at_a_glance_is_sound_to_the_judge(seen: tuple[Quick, bytes], ttl_s: float | None) -> None:
    quick, value = seen
    facts = facts_of(value)
    with np.errstate(all="ignore"):
        glance = quick.sound(memoryview(value))
        form = quick.skeleton(memoryview(value))
    if glance:
        assert judge(facts, quick.profile, ttl_s=ttl_s) == ("ok", ())
    if form is not None:
        assert repr(form.facts_of(value)) == repr(facts)


@settings(max_examples=200, deadline=None)
@given(one_value())
def test_a_skeleton_learnt_from_anything_reads_as_the_machine_does(seen: tuple[Quick, bytes]) -> None:
    """Whatever a skeleton is learnt from: other elements between the same bytes mean the same as to the slow way."""
    _, value = seen
    form = skeleton_of(value)
    if form is not None:
        other = bytes(byte ^ 0x55 for byte in value[len(form.head) : form.stop])
        changed = form.head + other + form.tail
        assert repr(form.facts_of(changed)) == repr(facts_of(changed))


def test_a_pickle_that_uses_its_elements_twice_has_no_skeleton() -> None:
    data = np.arange(64, dtype="f4").tobytes()
    twice = pickle.dumps([np.frombuffer(data, "f4"), data])
    assert facts_of(twice).kind == "array"
    assert skeleton_of(twice) is None
    shared = pickle.dumps({"shape": (64,), "dtype": "float32", "data": data})
    assert skeleton_of(shared) is not None
    # the same with the bytes fetched from the memo a second time, as a text beside the array
    again = shared[:-3] + b"\x8c\x04more\x94h" + shared[shared.index(b"\x94", shared.index(data)) - 1 : 0] + b"\x06s."
    assert skeleton_of(again) is None or facts_of(again).kind == "broken"


def test_a_family_whose_keys_expire_still_shows_the_ones_that_do_not() -> None:
    values = [pickle.dumps(array(seed, "f2")) for seed in range(60)]
    profile = learn("f", [Sample(facts_of(value), 86_400.0) for value in values])
    quick = Quick(profile, None)
    quick.learn(values[0])
    assert profile.expires and quick.expires and quick.sound(memoryview(values[1]))
    assert judge(facts_of(values[1]), profile, ttl_s=None) == ("soft", ("no-ttl",))


def test_a_family_of_texts_or_too_few_is_never_judged_at_a_glance() -> None:
    value = pickle.dumps(array(1, "f2"))
    for profile in (Profile("f", 3), learn("f", [Sample(facts_of(b"hello there, text %d" % n), None) for n in range(60)])):
        quick = Quick(profile, None)
        quick.learn(value)
        assert not quick.usable and not quick.sound(memoryview(value))


KEYS = st.one_of(
    st.from_regex(rb"[a-z0-9]{1,6}(?:[:/|@.-][a-zA-Z0-9]{1,12}){0,4}", fullmatch=True),
    st.from_regex(rb"(?:[a-z]{2,5}:)?(?:v[0-9]{1,6}[:.])?[a-z]{0,5}[0-9a-f]{1,40}", fullmatch=True),
    st.from_regex(rb"[a-f0-9-]{10,36}:?[0-9]{0,30}", fullmatch=True),
    st.binary(max_size=30),
)


@settings(max_examples=400, deadline=None)
@given(KEYS, st.randoms(use_true_random=False))
def test_keys_that_are_alike_are_of_one_family(key: bytes, random: "object") -> None:
    place = like(key)
    if place is None:
        return
    names: Names[object] = Names()
    names.remember(key, named(key).family, named(key))
    before, kind = place
    size = len(key) - len(before)
    letters = b"0123456789" if kind else b"0123456789abcdef"
    tail = bytes(random.choices(letters, k=size if kind else 8 + random.randrange(40)))  # type: ignore[attr-defined]
    other = before + tail
    known = names.get(other)
    pattern = page_of(key)
    assert pattern is not None
    assert (pattern.fullmatch(other + b"\n" + key + b"\n") is not None) == (like(other) == place), (key, other)
    if known is not None:
        assert like(other) == place
        assert known == named(other), (key, other)


BITS = st.one_of(st.integers(0, 65535), st.sampled_from((0, 0x8000, 1, 0x8001, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFFFF)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(BITS, min_size=1, max_size=40), min_size=1, max_size=12))
def test_sums_of_squares_of_many_are_those_of_each(arrays: list[list[int]]) -> None:
    halves = Halves()
    for bits in arrays:
        assert halves.room(len(bits))
        halves.put(np.array(bits, np.uint16))
    for number, (bits, total) in enumerate(zip(arrays, halves.sums(), strict=True)):
        values = np.array(bits, np.uint16).view(np.float16).astype(np.float64)
        if np.isfinite(values).all():
            assert total == pytest.approx(float(values @ values), rel=1e-5)
        else:
            assert total == float("inf")
        assert halves.array(number) == np.array(bits, np.uint16).tobytes()
    halves.clear()
    assert halves.sums() == []
