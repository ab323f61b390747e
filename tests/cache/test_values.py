"""Kinds of families beyond arrays: raw buffers, texts, JSON, objects, hashes; what is a ghost in them and what only looks it."""

import base64
import hashlib
import json
import pickle
import types
from collections import Counter
from typing import Any

import numpy as np
import pytest

from diag.cache.scanning.named import judge_named
from diag.cache.scanning.server import scan
from diag.cache.servers.connection import connect
from diag.cache.values.executing import runs_code
from diag.cache.values.facts import facts_of
from diag.cache.values.hashes import facts_of_hash
from diag.cache.values.judging import Scan
from diag.cache.values.keys import CacheKey, Place
from diag.cache.values.profile import Profile, Sample, learn
from diag.cache.values.verdicts import is_short, judge
from tests.cache.conftest import LiveServer

DAY = 86_400.0
RNG = np.random.default_rng(0)


def family(values: list[bytes], ttl_s: float | None = None) -> Profile:
    return learn("f", [Sample(facts_of(value), ttl_s) for value in values])


def verdict(value: bytes, profile: Profile, ttl_s: float | None = None) -> tuple[str, tuple[str, ...]]:
    return judge(facts_of(value), profile, ttl_s=ttl_s)


def numbers(seed: int, count: int = 96, dtype: str = "f4") -> Any:
    return np.random.default_rng(seed).normal(size=count).astype(dtype)


def bfloat16(values: Any) -> bytes:
    return bytes((values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "bf16"])
@pytest.mark.parametrize("wrap", [bytes, pickle.dumps, base64.b64encode])
def test_raw_buffers_are_seen_as_the_numbers_of_their_siblings(dtype: str, wrap: Any) -> None:
    def raw(values: Any) -> bytes:
        return bytes(wrap(bfloat16(values) if dtype == "bf16" else values.astype(dtype).tobytes()))

    profile = family([raw(numbers(n)) for n in range(40)])
    bad = numbers(1)
    bad[7] = np.nan
    assert profile.view is not None
    assert verdict(raw(numbers(99)), profile) == ("ok", ())
    assert verdict(raw(bad), profile) == ("ghost", ("nan-inf",))
    assert verdict(raw(np.zeros(96)), profile) == ("ghost", ("all-zero",))
    assert verdict(raw(np.full(96, 0.25)), profile) == ("ghost", ("constant",))


@pytest.mark.parametrize("top", [90, 256])
def test_pictures_are_no_numbers_with_nan_in_them(top: int) -> None:
    dark = [np.random.default_rng(n).integers(0, top, 3072, dtype="u1").tobytes() for n in range(40)]
    profile = family(dark)
    assert profile.view is None
    assert verdict(b"\xff" * 3072, profile)[0] != "ghost"  # white
    assert verdict(RNG.integers(0, 256, 3072, dtype="u1").tobytes(), profile) == ("ok", ())


def test_among_buffers_of_one_length_only_tails_may_be_shorter() -> None:
    def told(odd: list[bytes], usual: int) -> Counter[tuple[str, tuple[str, ...]]]:
        found = Scan()
        rows: list[CacheKey] = []
        found.each = rows.append
        for number in range(300):
            found.add(Place("t", 0, b"vec:%d" % number, None, None), facts_of(numbers(number, usual // 4).tobytes()))
        for number, value in enumerate(odd, 900):
            found.add(Place("t", 0, b"vec:%d" % number, None, None), facts_of(value))
        found.finish()
        return Counter((row.verdict, row.reasons[:1]) for row in rows if row.verdict != "ok")

    assert told([numbers(1).tobytes()[:171], numbers(1, 192).tobytes()], 384) == {("ghost", ("truncated",)): 1, ("ghost", ("shape-mismatch",)): 1}
    assert told([numbers(n, 64 * n).tobytes() for n in (1, 3, 5, 7)], 4 * 64 * 16) == {}
    assert told([numbers(1, 64 * 10).tobytes()], 4 * 64 * 256) == {}


def test_a_family_of_two_kinds_is_judged_kind_by_kind() -> None:
    arrays = [pickle.dumps(numbers(n)) for n in range(40)]
    bodies = [json.dumps({"caption": f"picture {n}", "model": "blip", "error": None}).encode() for n in range(40)]
    profile = family([*arrays, *bodies])
    assert verdict(pickle.dumps(np.full(96, np.nan, "f4")), profile) == ("ghost", ("nan-inf",))
    assert verdict(arrays[1], profile) == verdict(bodies[1], profile) == ("ok", ())
    assert verdict(json.dumps({"error": {"message": "overloaded"}}).encode(), profile) == ("ghost", ("error-cached",))


def test_two_shapes_and_two_types_are_normal_and_a_third_is_not() -> None:
    values = [pickle.dumps(numbers(n, 128 if n % 2 else 256)) for n in range(80)]
    assert verdict(pickle.dumps(numbers(1, 64)), family(values))[0] == "ghost"
    assert verdict(pickle.dumps(numbers(1, 256)), family(values)) == ("ok", ())
    mixed = family([pickle.dumps(numbers(n, 128, "f2" if n % 3 else "f4")) for n in range(90)])
    assert verdict(pickle.dumps(numbers(1, 128, "f4")), mixed) == ("ok", ())
    assert verdict(pickle.dumps(numbers(1, 128, "i4")), mixed)[0] == "ghost"


def test_arrays_that_are_nearly_all_zero_may_be_all_zero_and_tiny_ones_too() -> None:
    def sparse(seed: int, share: float) -> bytes:
        rng = np.random.default_rng(seed)
        return pickle.dumps((rng.normal(size=512) * (rng.random(512) < share)).astype("f4"))

    zero = pickle.dumps(np.zeros(512, "f4"))
    assert verdict(zero, family([sparse(n, 0.005) for n in range(60)]))[0] != "ghost"
    assert verdict(zero, family([sparse(n, 0.1) for n in range(60)])) == ("ghost", ("all-zero",))
    assert verdict(pickle.dumps(np.zeros(2, "f4")), family([pickle.dumps(numbers(n, 2)) for n in range(40)])) == ("ok", ())


def test_an_unlucky_order_does_not_hide_ghosts_that_are_a_third_of_the_family() -> None:
    def ghosts(first_ghosts: int, keys: int = 1800) -> int:
        """Of the first 200 keys so many are ghosts, of the whole family a third."""
        found = Scan()
        ghosts_left, rest_left = keys // 3 - first_ghosts, keys - keys // 3 - (200 - first_ghosts)
        kinds = [True] * first_ghosts + [False] * (200 - first_ghosts)
        kinds += np.random.default_rng(1).permutation([True] * ghosts_left + [False] * rest_left).tolist()
        for number, ghost in enumerate(kinds):
            found.add(Place("t", 0, b"emb:%05d" % number, None, None), facts_of(pickle.dumps(None if ghost else numbers(number))))
        found.finish()
        return len(found.ghosts)

    assert [ghosts(first) for first in (40, 67, 81, 95)] == [600] * 4
    assert ghosts(150, 450) == 0  # markers are what this family seems to be made of, and nothing that follows is plenty


def test_tail_chunks_seen_late_are_taken_back_and_other_widths_are_not() -> None:
    found = Scan(sample=40)
    for number in range(400):
        found.add(Place("t", 0, b"kv:%d" % number, None, None), facts_of(pickle.dumps(numbers(number, 32 * 8).reshape(32, 8))))
    odd = [numbers(n, 8 * n).reshape(n, 8) for n in (3, 9, 14, 21, 30)] + [numbers(1, 32 * 4).reshape(32, 4)]
    for number, value in enumerate(odd, 900):
        found.add(Place("t", 0, b"kv:%d" % number, None, None), facts_of(pickle.dumps(value)))
    found.finish()
    assert [(row.shape, row.reasons[0]) for row in found.ghosts.values()] == [("32x4", "shape-mismatch")]


TALK = [f"The picture shows a street with {n} people; one of them reads a page about error 404." for n in range(60)]


@pytest.mark.parametrize("text", ["__PLACEHOLDER__", "<skip>", "IMAGE_UNAVAILABLE", "SKIPPED", "encode_failed"])
def test_a_marker_among_texts_is_written_as_no_person_writes(text: str) -> None:
    found = verdict(text.encode(), family([line.encode() for line in TALK]))
    assert (found[0], found[1][0]) == ("ghost", "placeholder")


@pytest.mark.parametrize(
    "text", ["None.", "No.", "0", "Error.", "Traceback (most recent call last) is what Python prints first.", 'He wrote "__PLACEHOLDER__" there.']
)
def test_short_answers_and_talk_about_errors_are_answers(text: str) -> None:
    assert verdict(text.encode(), family([line.encode() for line in TALK]))[0] in ("ok", "soft")


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n  File 'x.py'", "<html><head><title>502 Bad Gateway</title>",
        "Error code: 429 - {'error': {'message': 'Rate limit'}}", "upstream connect error or disconnect/reset before headers. reset",
        "Internal Server Error",
    ],
)
def test_error_reports_among_texts_objects_and_json(text: str) -> None:
    assert verdict(text.encode(), family([line.encode() for line in TALK])) == ("ghost", ("error-cached",))
    assert "error-cached" in verdict(pickle.dumps(text), family([pickle.dumps(line) for line in TALK]))[1]
    answers = family([json.dumps({"timestamp": 1.0, "response": line}).encode() for line in TALK])
    assert verdict(json.dumps({"timestamp": 1.0, "response": text}).encode(), answers) == ("ghost", ("error-cached",))


def test_jobs_that_failed_are_answers_where_all_answers_look_like_that() -> None:
    jobs = [json.dumps({"job": n, "status": "done", "seconds": 1.5 * n}).encode() for n in range(60)]
    failed = json.dumps({"job": 99, "status": "failed", "seconds": 0.1}).encode()
    assert verdict(failed, family(jobs))[0] == "soft"


def test_nothing_is_an_answer_where_many_have_it_and_a_ghost_where_none_has() -> None:
    lists = [pickle.dumps(["cat", "dog"] * (n % 5)) for n in range(60)]
    assert verdict(pickle.dumps([]), family(lists)) == ("ok", ())
    bodies = [json.dumps({"caption": line, "model": "blip"}).encode() for line in TALK]
    assert verdict(b"{}", family(bodies)) == verdict(b"", family(bodies)) == ("ghost", ("empty",))
    boxes = [pickle.dumps(numbers(n, 4 * (n % 4)).reshape(n % 4, 4)) for n in range(80)]
    assert verdict(pickle.dumps(np.zeros((0, 4), "f4")), family(boxes)) == ("ok", ())
    assert verdict(pickle.dumps(np.zeros((0,), "f4")), family([pickle.dumps(numbers(n)) for n in range(40)])) == ("ghost", ("empty",))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b'{"embedding": null, "model": "m"}', "null-marker"), (b'{"embedding": [], "model": "m"}', "empty"),
        (b'{"embedding": [0.5, null, 0.25], "model": "m"}', "nan-inf"), (b'{"embedding": "<skip>", "model": "m"}', "placeholder"),
        (b"[[0.5, 0.25, 0.75]]", "shape-mismatch"), (b'{"embedding": [0.5, NaN, 0.25]}', "nan-inf"),
    ],
)
def test_embeddings_in_json(value: bytes, code: str) -> None:
    profile = family([json.dumps({"embedding": numbers(n, 3, "f8").tolist(), "model": "m"}).encode() for n in range(40)])
    found = verdict(value, profile)
    assert found[0] == "ghost" and code in found[1]
    same = json.dumps({"embedding": base64.b64encode(numbers(1, 48).tobytes()).decode(), "model": "m"}).encode()
    wide = family([json.dumps({"embedding": numbers(n, 48, "f8").tolist(), "model": "m"}).encode() for n in range(40)])
    assert verdict(same, wide) == ("ok", ())


def test_another_thing_than_all_siblings_cannot_be_read_by_their_reader() -> None:
    tokens = family([pickle.dumps(list(range(n, n + 60))) for n in range(60)])
    assert verdict(pickle.dumps(["<skip>"]), tokens)[0] == "ghost"
    assert verdict(pickle.dumps({"status": "later"}), tokens)[0] == "ghost"
    assert verdict(b"17", tokens)[0] != "ghost"  # Django keeps whole numbers as text
    variety = family([pickle.dumps([{"a": n}, [n], f"text {n}"][n % 3]) for n in range(60)])
    assert verdict(pickle.dumps((1.0, "x")), variety)[0] != "ghost"


def test_harmless_classes_of_dangerous_modules_run_nothing() -> None:
    assert not any(map(runs_code, ("types.SimpleNamespace", "functools.partial", "_io.BytesIO", "requests.models.Response", "app.Item")))
    assert all(map(runs_code, ("os.system", "posix.system", "builtins.eval", "types.CodeType", "requests.get", "subprocess.Popen")))
    objects = family([pickle.dumps({"a": n, "b": "x" * 20}) for n in range(60)])
    assert verdict(pickle.dumps({"a": 1, "b": types.SimpleNamespace(c=1)}), objects)[0] in ("ok", "soft")


def test_what_is_left_of_a_long_life_is_no_sign_of_a_short_one() -> None:
    spread = learn("f", [Sample(facts_of(pickle.dumps(numbers(n))), 7 * DAY * (n + 1) / 200) for n in range(200)])
    assert not is_short(0.1 * DAY, spread) and is_short(600, spread)
    fresh = learn("f", [Sample(facts_of(pickle.dumps(numbers(n))), 7 * DAY - n) for n in range(60)])
    assert is_short(0.1 * DAY, fresh) and not is_short(6 * DAY, fresh)


def test_a_checksum_by_another_function_than_the_siblings_use() -> None:
    import zlib

    def item(seed: int, function: Any = zlib.crc32) -> bytes:
        data = pickle.dumps(numbers(seed))
        return pickle.dumps({"version": "v1", "data": data, "checksum": function(data)})

    profile = family([item(n) for n in range(40)])
    assert verdict(item(99), profile) == ("ok", ())
    assert verdict(item(99, zlib.adler32), profile) == ("ghost", ("checksum-mismatch",))
    assert verdict(item(99, zlib.adler32), family([item(n, zlib.adler32) for n in range(40)])) == ("ok", ())


def redisvl(number: int, vector: str | None = None) -> tuple[bytes, dict[bytes, bytes]]:
    content, model = f"text {number}".encode(), b"all-MiniLM"
    key = b"embedcache:" + hashlib.sha256(content + b":" + model).hexdigest().encode()
    text = json.dumps(numbers(number, 24, "f8").tolist()) if vector is None else vector
    return key, {b"content": content, b"model_name": model, b"embedding": text.encode(), b"inserted_at": b"1.5"}


def test_hashes_with_a_vector_are_judged_and_their_key_is_a_checksum(server: LiveServer) -> None:
    client = server.client()
    for number in range(600):
        key, fields = redisvl(number)
        client.hset(key, mapping=fields)  # type: ignore[arg-type]
    wrong: dict[bytes, str] = {}
    for number, (vector, code) in enumerate({"": "empty", "[0.5, NaN, 0.1]": "nan-inf", json.dumps([0.0] * 24): "all-zero"}.items(), 700):
        key, fields = redisvl(number, vector)
        client.hset(key, mapping=fields)  # type: ignore[arg-type]
        wrong[key] = code
    key, _ = redisvl(800)
    client.hset(key, mapping=redisvl(801)[1])  # type: ignore[arg-type]
    wrong[key] = "checksum-mismatch"
    client.hset("large", mapping={str(n): "x" for n in range(100)})
    found = scan(connect(server.url), server.target)
    assert {row.name: row.reasons[0] for row in found.ghosts} == wrong
    (other,) = [row for row in found.ghosts if row.reasons == ("checksum-mismatch",)]
    assert other.sha256 == hashlib.sha256(client.dump(key) or b"").hexdigest()
    assert found.keys == 605 and found.soft == ()


def test_raw_vectors_of_hashes() -> None:
    facts = facts_of_hash(b"llmcache:1", {b"prompt": b"x", b"prompt_vector": numbers(1).tobytes()})
    assert (facts.kind, facts.dtype, facts.shape, facts.codec) == ("array", "float32", (96,), "hash+raw")


def test_a_soft_reason_is_hard_for_a_key_that_a_stuck_thread_retries(server: LiveServer) -> None:
    client = server.client()
    for number in range(60):
        client.set(f"emb:v1:img{number}", pickle.dumps(numbers(number)), ex=3600)
    client.set("emb:v1:img900", pickle.dumps(numbers(1) / 100), ex=3600)
    there = connect(server.url)
    calm = judge_named(there, server.target, [b"emb:v1:img900"])
    held = judge_named(there, server.target, [b"emb:v1:img900", b"emb:v1:img3"], retried=[b"emb:v1:img900", b"emb:v1:img3"])
    assert [row.reasons for row in calm.soft] == [("norm-outlier",)] and calm.ghosts == ()
    assert [(row.key, row.reasons) for row in held.ghosts] == [("emb:v1:img900", ("norm-outlier",))]
    assert held.ghosts[0].purgeable and "again and again" in held.ghosts[0].detail


def test_three_shapes_of_few_keys_and_a_first_tail_are_no_ghosts() -> None:
    crops = [pickle.dumps(numbers(n, 192).reshape((12, 16) if n % 3 == 0 else (16, 12))) for n in range(30)]
    crops += [pickle.dumps(numbers(n, 256).reshape(16, 16)) for n in range(19)]
    assert {verdict(value, family(crops))[0] for value in crops} == {"ok"}
    chunks = [pickle.dumps(numbers(n, 32 * 8).reshape(32, 8)) for n in range(100)]
    assert verdict(pickle.dumps(numbers(1, 15 * 8).reshape(15, 8)), family(chunks))[0] == "soft"
    assert verdict(pickle.dumps(numbers(1, 32 * 4).reshape(32, 4)), family(chunks))[0] == "ghost"
    assert verdict(pickle.dumps(numbers(1, 8).reshape(1, 8)), family([*chunks, *chunks]))[0] == "soft"
