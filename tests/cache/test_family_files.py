"""Family files: what they state is checked, what is wrong in them is named, and shipped ones fit the keys they are for."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from diag.cache.values.facts import facts_of
from diag.cache.values.families import family
from diag.cache.values.family_files import book, read, shipped
from diag.cache.values.profile import Profile, Sample, learn
from diag.cache.values.selection import chosen, current, using
from diag.cache.values.verdicts import judge
from diag.errors import BadInput

HEX = "9e107d9d372bb6826bd81d3542a419d6"
SHA = HEX * 2
KEY = f"clip:image:{HEX}".encode()
HEAD = 'schema = 1\nname = "clip"\nabout = "x"\nkeys = ["clip:image:<hex>"]\n'


def array(seed: int, *shape: int, dtype: str = "f4") -> bytes:
    return pickle.dumps(np.random.default_rng(seed).normal(size=shape or (1, 64)).astype(dtype))


def stated(tmp_path: Path, more: str, values: list[bytes] | None = None) -> Profile:
    path = tmp_path / "clip.toml"
    path.write_text(HEAD + more)
    facts = [facts_of(value) for value in (values or [array(n) for n in range(40)])]
    known = book([path]).find([(KEY, item) for item in facts])
    assert known is not None and not known.shipped
    return learn("clip:image:<hex>", [Sample(item, 3600.0) for item in facts], None, known)


def verdict(value: bytes, profile: Profile, ttl_s: float | None = 3600.0, version: str | None = None) -> tuple[str, tuple[str, ...]]:
    return judge(facts_of(value), profile, ttl_s=ttl_s, key_version=version, key=KEY)


@pytest.mark.parametrize(
    ("expect", "value", "reason"),
    [
        ('dtype = ["float32"]', array(1, dtype="f2"), "dtype-mismatch"),
        ("shape = [1, 64]", array(1, 2, 64), "shape-mismatch"),
        ('shape = ["*", 64]', array(1, 2, 32), "shape-mismatch"),
        ("norm = [4, 16]", pickle.dumps(np.full((1, 64), 0.01, "f4") * np.arange(64, dtype="f4") / 64), "norm-outlier"),
        ("bytes = [100, 900]", array(1, 16, 64), "length-outlier"),
        ('codec = ["npy"]', array(1), "dtype-mismatch"),
        ('codec = ["pickle"]', bytes(range(128, 256)), "corrupt"),
        ('dtype = ["float32"]', pickle.dumps({"status": "later"}), "dtype-mismatch"),
    ],
)
def test_a_value_that_breaks_what_is_stated_is_a_ghost(tmp_path: Path, expect: str, value: bytes, reason: str) -> None:
    profile = stated(tmp_path, f"[expect]\n{expect}\n")
    found = verdict(value, profile)
    assert found[0] == "ghost" and reason in found[1]


def test_without_a_file_the_same_oddities_are_soft_and_sound_values_stay_sound(tmp_path: Path) -> None:
    small = pickle.dumps(np.random.default_rng(0).normal(size=(1, 64)).astype("f4") / 50)
    learnt = learn("f", [Sample(facts_of(array(n)), 3600.0) for n in range(40)])
    assert judge(facts_of(small), learnt, ttl_s=3600.0) == ("soft", ("norm-outlier",))
    profile = stated(tmp_path, '[expect]\nnorm = [4, 16]\ndtype = ["float32"]\nshape = [1, 64]\nttl = "required"\nversion = "2"\n')
    assert verdict(small, profile) == ("ghost", ("norm-outlier",))
    assert verdict(array(99), profile, version="2") == verdict(array(99), profile, version="3") == ("ok", ())


def test_ttl_and_version_that_are_stated_are_hard(tmp_path: Path) -> None:
    profile = stated(tmp_path, '[expect]\nttl = "required"\nttl_max_s = 7200\nversion = "2"\n')
    assert verdict(array(1), profile, ttl_s=None)[0] == "ghost"
    assert verdict(array(1), profile, ttl_s=90_000.0) == ("ghost", ("no-ttl",))
    assert verdict(array(1), profile, version="v1") == ("ghost", ("stale-version",))


def test_stated_null_markers_are_a_defence_up_to_their_ttl(tmp_path: Path) -> None:
    profile = stated(tmp_path, "null_marker_ttl_s = 3000\n")
    assert verdict(b"null", profile, ttl_s=2900.0) == ("soft", ("null-marker",))
    assert verdict(b"null", profile, ttl_s=3100.0) == ("ghost", ("null-marker",))


def test_a_marker_counts_in_its_own_family_only(tmp_path: Path) -> None:
    path = tmp_path / "clip.toml"
    path.write_text(HEAD + '[expect]\nmarkers = ["quux"]\n')
    mine = book([path])
    facts = [facts_of(array(n)) for n in range(40)]
    known = mine.find([(KEY, item) for item in facts])
    samples = [Sample(item, None) for item in facts]
    marked = facts_of(pickle.dumps({"v": np.ones((1, 64), "f4") * np.arange(64, dtype="f4"), "x": "quux"}), markers=mine.markers)
    assert judge(marked, learn("a", samples, None, known, mine.marks), ttl_s=None)[0] == "ghost"
    assert judge(marked, learn("b", samples, None, None, mine.marks), ttl_s=None)[0] != "ghost"
    assert judge(marked, learn("b", samples), ttl_s=None)[0] == "ghost"  # a caller's own marker counts everywhere


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "colour = 1\n", "colour: unknown key"),
        (HEAD + "[expect]\nshpe = [1]\n", "expect.shpe: unknown key"),
        (HEAD + "[expect]\nnorm = [2, 1]\n", "expect.norm: must be [smallest, largest]"),
        (HEAD + '[expect]\nmarkers = [""]\n', "expect.markers"),
        (HEAD + 'checks = ["smell"]\n', "checks: 'smell' is none of"),
        (HEAD + "[halves]\nassumed = true\n", "halves: either ends or begins"),
        (HEAD.replace("<hex>", "<hexx>"), "<hexx> is no placeholder"),
        (HEAD.replace("schema = 1", "schema = 2"), "schema: must be 1, not 2"),
        (HEAD.replace('keys = ["clip:image:<hex>"]', "keys = 7"), "keys: "),
        ('schema = 1\nname = "x"\nabout = "y"\n', "keys: missing"),
        ("schema = ", "Invalid value"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert str(path) in caught.value.message and said in caught.value.message


def test_an_own_file_takes_the_place_of_a_shipped_one_and_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "litellm.toml"
    path.write_text('schema = 1\nname = "litellm"\nabout = "ours"\nkeys = ["<*>:<hex64>"]\n')
    families = book([path]).families
    assert [known.path for known in families if known.name == "litellm"] == [str(path)] and families[0].path == str(path)
    with pytest.raises(BadInput, match="another family file already"):
        book([path, path])


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("Qwen/Qwen3-8B@2@1@00af3b12cd45ef67@bfloat16kv_bytes", "lmcache"),
        ("Qwen/Qwen3-8B@2@1@00af3b12cd45ef67@bfloat16@12metadata", "lmcache"),
        ("Qwen/Qwen3-8B@2@1@00af3b12cd45ef67@fp8_e4m3fn", "lmcache-single"),
        ("vllm@Qwen/Qwen3-8B@2@1@00af3b12cd45ef67", "lmcache-old"),
        ("mooncake/ram/segment-1", "mooncake"),
        ("Qwen/keys/rank_0/model.layers.0.mlp", "sglang-weights"),
        ("sk-1234::gpt-4::10-30::request_count", "litellm-counters"),
        ("gpt-4:tpm:10-30", "litellm-counters"),
        ("lock:encode:9e10", "locks"),
        ("images:counter", "counters"),
        ("gptcache:counter", "counters"),
        (f"flask_cache_{HEX}", "cachelib"),
        ("app.viewsget_items(1, 2)[]", "aiocache"),
        (f"mm:v3:qwen2-vl:image:{SHA}", "multimodal"),
        (f"img:{HEX}:shape", "multimodal-shapes"),
    ],
)
def test_shipped_files_know_their_keys(key: str, name: str) -> None:
    known = shipped().find([(key.encode(), facts_of(b"x"))])
    assert known is not None and known.name == name


def test_fields_and_codecs_tell_keys_apart_that_look_alike() -> None:
    key = f"rag:{SHA}".encode()
    answer = facts_of(b'{"timestamp": 1.0, "response": "{}"}')
    other = facts_of(b'{"caption": "a dog"}')
    found = [shipped().find([(key, facts)] * 5) for facts in (answer, other)]
    assert [None if known is None else known.name for known in found] == ["litellm", None]


def test_protected_families_are_reported_and_never_purged_by_default() -> None:
    facts = [facts_of(b'{"segment": %d}' % n) for n in range(40)]
    known = shipped().find([(b"mooncake/ram/a", facts[0])])
    profile = learn("mooncake/ram/<n>", [Sample(item, None) for item in facts], None, known)
    assert judge(facts_of(b'{"segment"'), profile, ttl_s=None, key=b"mooncake/ram/a") == ("soft", ("protected",))
    assert judge(facts[0], profile, ttl_s=None, key=b"mooncake/ram/a") == ("ok", ())


def test_django_versions_are_few_numbers_and_ids_are_not() -> None:
    facts = facts_of(pickle.dumps({"a": 1}))
    versions = [(f"prod:{1 + (n > 3)}:user:{n}".encode(), facts) for n in range(40)]
    ids = [(f"user:{n}:emb".encode(), facts) for n in range(40)]
    known, none = shipped().find(versions), shipped().find(ids)
    assert known is not None and known.name == "django" and known.said(b"prod:1:user:7", "version") == "1"
    assert none is None


def test_a_selection_holds_while_a_command_runs_and_names_families_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "clip.toml"
    path.write_text(HEAD)
    selection = chosen(["clip", "emb:*"], [path])
    with using(selection):
        wanted = [key for key in (KEY, f"emb:v1:{HEX}".encode(), b"other:1") if current().wants(key)]
    assert [family(key) for key in wanted] == ["clip:image:<hex>", "emb:v1:<hex>"]
    assert current().wants(b"other:1")
