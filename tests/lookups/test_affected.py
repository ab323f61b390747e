"""Which versions search their prefix cache in a way that holes deceive."""

import pytest

from diag.lookups import affected


@pytest.mark.parametrize(
    ("component", "version", "status"),
    [
        ("mindie", "2.2.RC1", "affected"), ("mindie", "2.2rc1", "affected"), ("mindie", "2.2.0", "affected"), ("mindie", "2.3.0", "fixed"),
        ("mindie", "2.3", "fixed"), ("mindie", "3.0.RC1", "fixed"), ("mindie", "2.1", None), ("mindie", "T6", None),
        ("vllm", "0.5.5", None), ("vllm", "0.6.6.post1", "affected"), ("vllm", "0.7.3", "affected"), ("vllm", "0.8.5.post1", "possible"),
        ("vllm", "v0.8.5.post1+cu121", "possible"), ("vllm", "0.10.2", "possible"), ("vllm", "0.11.0", "fixed"), ("vllm", "0.32.0+cpu", "fixed"),
        ("sglang", "0.5.6", None), ("vllm", "", None), ("vllm", "unknown", None),
    ],
)  # fmt: skip
def test_what_is_known_of_a_version(component: str, version: str, status: str | None) -> None:
    found = affected.known(component, version)
    assert (found.status if found is not None else None) == status


def test_ranges_do_not_contradict_each_other() -> None:
    """Per component newest first, each beginning where the one after it ends."""
    for component in {item.component for item in affected.ranges()}:
        mine = [item for item in affected.ranges() if item.component == component]
        assert [item.since for item in mine[:-1]] == [item.below for item in mine[1:]]
        assert mine[0].below == ""
