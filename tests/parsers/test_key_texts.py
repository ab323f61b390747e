"""Which texts count as keys, and what py-spy's quoting hides."""

import pytest

from diag.parsers.key_texts import looks_like_key, text_of, was_cut


@pytest.mark.parametrize("text", ["clip-vit-b-32:image:9e10", "m@v2", "9e107d9d372bb6826bd81d3542a419d6", "0f8fad5b-d9cb-469f-a165-70867728950e", "a:" + "x" * 510])
def test_keys(text: str) -> None:
    assert looks_like_key(text)


@pytest.mark.parametrize("text", ["", "EngineCore", "tell me: a secret", "key:\n", "a:" + "x" * 511, "7fa6b84c7ed0", "0x7fa6b84c7ed0"])
def test_no_keys(text: str) -> None:
    assert not looks_like_key(text)


def test_quotes_come_off_and_what_py_spy_escaped_comes_back() -> None:
    assert text_of('"a\\"b:c"') == "a'b:c"
    assert text_of('"a\\nb"') == "a\nb"
    assert text_of('""') == ""
    assert [text_of(printed) for printed in ("None", "3", '("GET", "k:1")', "<bytes at 0x7f>", '"', "")] == [None] * 6


def test_cut_is_a_matter_of_length() -> None:
    for shown in (128, 256, 512):
        assert was_cut('"' + "k" * (shown - 5) + '..."')
        assert text_of('"' + "k" * (shown - 5) + '..."') == "k" * (shown - 5)
    assert not was_cut('"k:..."')
    assert text_of('"k:..."') == "k:..."
