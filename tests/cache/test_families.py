"""Key names -> families."""

import fnmatch

import pytest

from diag.cache.values.families import family, older, sibling_glob, version_of, versionless

MD5 = b"d41d8cd98f00b204e9800998ecf8427e"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"clip-vit-b-32:image:" + MD5, "clip-vit-b-32:image:<hex>"),
        (b"model:v1:image:" + MD5, "model:v1:image:<hex>"),
        (b"mm:v3:qwen2-vl:image:17", "mm:v3:qwen2-vl:image:<n>"),
        (b"sess:0b5a6c1e-6f5e-4a53-9a8e-0b4f3c2d1e0f", "sess:<uuid>"),
        (b"gptcache:questions:01ARZ3NDEKTSV4RRFFQ69G5FAV", "gptcache:questions:<ulid>"),
        (b"Qwen/Qwen3-8B@1@0@00af3b12cd45ef67@bfloat16", "Qwen/Qwen3-8B@<n>@<n>@<hex>@bfloat16"),
        (b"emb:img000123", "emb:img<n>"),
        (b"emb:clip:float16", "emb:clip:float16"),
        (b"words:deadbeef", "words:deadbeef"),
        (b"emb:" + b"\xff\x00\xfe" * 5, "emb:<bin>"),
        (b"emb:ab\xffcd:x", "emb:<bin>"),
        (b"plain", "plain"),
        (b"", ""),
        (b"t:aB3dEf7hIj1kLm9nOp5qRs", "t:<tok>"),
        ("größe:12345".encode(), "größe:<n>"),
    ],
)
def test_families_mask_what_differs_between_siblings(key: bytes, expected: str) -> None:
    assert family(key) == expected


def test_versions_stay_in_the_family_and_can_be_taken_out() -> None:
    old, new = b"model:v1:image:" + MD5, b"model:v2:image:" + MD5[::-1]
    assert family(old) != family(new)
    assert versionless(old) == versionless(new) == "model:<v>:image:<hex>"
    assert version_of(old) == "1"
    assert version_of(b"clip-v2:image:" + MD5) is None


def test_the_glob_of_a_key_fits_its_siblings_of_any_version() -> None:
    glob = sibling_glob(b"model:v1:[image]*:" + MD5).decode()
    assert glob == r"model:*:\[image\]\*:*"
    assert fnmatch.fnmatchcase("model:v22:[image]*:ffff", glob.replace(r"\[", "[[]").replace(r"\]", "]").replace(r"\*", "[*]"))


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [("1", "2", True), ("v1.9", "v1.10", True), ("2", "2", False), ("10", "9", False), ("a1b2", "2", None)],
)
def test_versions_are_compared_as_numbers(version: str, than: str, expected: bool | None) -> None:
    assert older(version, than) is expected
