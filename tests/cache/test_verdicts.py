"""The judge by itself: what is hard, what is soft, what cannot be said."""

import json
import pickle
from collections import Counter
from types import ModuleType

import numpy as np
import pytest

from diag.cache.values.facts import Facts, facts_of
from diag.cache.values.profile import Profile, Sample, learn
from diag.cache.values.verdicts import is_short, judge

DAY = 86_400.0


def array(seed: int, *shape: int) -> bytes:
    return pickle.dumps(np.random.default_rng(seed).normal(size=shape or (1, 64)).astype("f4"))


def family(count: int = 50, ttl_s: float | None = None, extra: list[bytes] | None = None) -> Profile:
    values = [array(n) for n in range(count)] + (extra or [])
    return learn("f", [Sample(facts_of(value), ttl_s) for value in values])


def verdict(value: bytes, profile: Profile, ttl_s: float | None = None) -> tuple[str, tuple[str, ...]]:
    return judge(facts_of(value), profile, ttl_s=ttl_s)


@pytest.mark.parametrize(
    ("data_ttl_s", "marker_ttl_s", "expected"),
    [
        (None, None, "ghost"),
        (None, 60.0, "soft"),
        (DAY, None, "ghost"),
        (DAY, DAY, "ghost"),
        (DAY, 60.0, "soft"),
        (3600.0, 3000.0, "ghost"),
        (None, 30 * DAY, "ghost"),
    ],
)
def test_a_null_marker_is_a_ghost_only_if_it_lives_as_long_as_the_data(
    data_ttl_s: float | None, marker_ttl_s: float | None, expected: str
) -> None:
    for value in (pickle.dumps(None), b"None", b"null", b"\x80\x04N."):
        assert verdict(value, family(ttl_s=data_ttl_s), marker_ttl_s) == (expected, ("null-marker",))


def test_a_marker_beside_a_tiny_array_is_a_ghost_and_beside_a_sound_one_is_not() -> None:
    profile = family()
    tiny = {"data": np.zeros((1, 1), "f4"), "status": "SKIP_IMAGE"}
    sound = {"data": np.random.default_rng(0).normal(size=(1, 64)).astype("f4"), "caption": "an error on a screen"}
    labelled = {**sound, "caption": "none"}
    assert verdict(pickle.dumps(tiny), profile)[0] == "ghost"
    assert "placeholder" in verdict(pickle.dumps(tiny), profile)[1]
    assert verdict(pickle.dumps(sound), profile) == ("ok", ())
    assert verdict(pickle.dumps(labelled), profile) == ("soft", ("placeholder",))


@pytest.mark.parametrize("text", ["skip", "__SKIP__", "Placeholder", "encode_failed", "image unavailable", "NotFound"])
def test_marker_texts_in_place_of_an_array(text: str) -> None:
    for value in (text.encode(), pickle.dumps(text), pickle.dumps({"status": text}), json.dumps({"s": text}).encode()):
        found = verdict(value, family())
        assert found[0] == "ghost" and "placeholder" in found[1], value


def test_the_callers_own_marker_is_searched_in_the_bytes() -> None:
    value = pickle.dumps({"v": np.random.default_rng(0).normal(size=(1, 64)).astype("f4"), "x": "quux-7"})
    facts = facts_of(value, markers=[b"quux"])
    assert judge(facts, family(), ttl_s=None) == ("ghost", ("placeholder",))


@pytest.mark.parametrize("count", [0, 1, 19])
def test_too_few_siblings_prove_nothing_but_damage(count: int) -> None:
    profile = family(count)
    zero = pickle.dumps(np.zeros((1, 64), "f4"))
    assert verdict(zero, profile) == ("unknown", ())
    assert verdict(array(1, 1, 8), profile) == ("unknown", ())
    assert verdict(pickle.dumps(None), profile) == ("unknown", ("null-marker",))
    expected = "unknown" if count == 0 else "ghost"
    assert verdict(array(1)[:-3], profile) == (expected, ("truncated",))
    assert verdict(b"", profile) == (expected, ("empty",))


def test_a_family_without_majority_has_no_outliers() -> None:
    values = [array(n, 1, 64) for n in range(25)] + [array(n, 32) for n in range(25)]
    values += [array(n, 2, 2, 2) for n in range(25)]
    profile = learn("f", [Sample(facts_of(value), None) for value in values])
    assert profile.axes is None
    assert verdict(array(0, 5, 5, 5, 5), profile)[0] != "ghost"


def test_ghosts_in_the_sample_do_not_become_the_norm() -> None:
    zero = pickle.dumps(np.zeros((1, 64), "f4"))
    profile = family(50, extra=[zero] * 10 + [pickle.dumps(None)] * 10)
    assert verdict(zero, profile) == ("ghost", ("all-zero",))
    assert verdict(pickle.dumps(None), profile)[0] == "ghost"


def test_an_axis_that_varies_is_no_mismatch_and_the_width_always_is() -> None:
    rng = np.random.default_rng(0)
    values = [array(n, 256, 8) for n in range(80)] + [array(n, int(rng.integers(1, 255)), 8) for n in range(20)]
    profile = learn("f", [Sample(facts_of(value), None) for value in values])
    assert profile.axes == (None, 8)
    assert verdict(array(1, 77, 8), profile)[0] != "ghost"
    assert verdict(array(1, 256, 4), profile)[1][0] == "shape-mismatch"


def test_a_format_this_program_misreads_is_not_called_corrupt() -> None:
    odd = b"\x80\x04\xff" + bytes(60)
    profile = learn("f", [Sample(facts_of(odd + bytes([n])), None) for n in range(40)])
    assert verdict(odd + b"!", profile)[0] == "unknown"


def test_checksums_that_fit_nowhere_in_the_family_prove_nothing(app: ModuleType) -> None:
    data = np.random.default_rng(0).normal(size=(1, 64))
    strange = [facts_of(app.item(data + n, broken=True)) for n in range(40)]
    profile = learn("f", [Sample(facts, None) for facts in strange])
    assert judge(strange[0], profile, ttl_s=None)[0] == "ok"
    sound = learn("f", [Sample(facts_of(app.item(data + n)), None) for n in range(40)])
    assert judge(strange[0], sound, ttl_s=None) == ("ghost", ("checksum-mismatch",))


def test_a_new_wrapper_around_sound_data_is_not_a_ghost(app: ModuleType) -> None:
    value = app.item(np.random.default_rng(0).normal(size=(1, 64)).astype("f4"))
    assert verdict(value, family()) == ("soft", ("foreign-object",))


def test_key_versions_are_judged_even_in_small_families() -> None:
    few = learn("model:v1:<hex>", [], Counter({"2": 90, "1": 3}))
    assert judge(facts_of(array(1)), few, ttl_s=None, key_version="1") == ("soft", ("stale-version",))
    assert judge(facts_of(array(1)), few, ttl_s=None, key_version="3")[1] == ()
    torn = learn("model:v1:<hex>", [], Counter({"2": 50, "1": 50}))
    assert judge(facts_of(array(1)), torn, ttl_s=None, key_version="1")[1] == ()


def test_short_is_short_beside_the_data() -> None:
    assert is_short(60, family(ttl_s=DAY)) and not is_short(60, family(ttl_s=90))
    assert not is_short(None, family(ttl_s=DAY)) and is_short(60, family())


def test_numbers_of_a_value_are_exact() -> None:
    values = np.array([[1.0, -2.0, np.nan, np.inf, 0.0]], "f4")
    facts: Facts = facts_of(pickle.dumps(values))
    assert facts.stats is not None
    stats = facts.stats
    assert (stats.size, stats.min, stats.max, stats.nan, stats.inf, stats.zeros) == (5, -2.0, 1.0, 1, 1, 1)
    assert stats.norm == pytest.approx(5**0.5) and stats.mean == pytest.approx(-1 / 3)
    both = facts_of(pickle.dumps([np.ones((1, 64), "f4"), np.array([np.nan], "f4")]))
    assert both.stats is not None and both.stats.nan == 1 and both.shape == (1, 64)


def test_what_would_run_something_is_told_whatever_its_siblings_are() -> None:
    evil = b"cposix\nsystem\n(S'true'\ntR."
    assert verdict(evil, family(3))[0] == "soft" and "foreign-object" in verdict(evil, family(3))[1]
    assert verdict(evil, family())[0] == "ghost"
