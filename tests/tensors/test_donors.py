"""Whose content a block holds, where rounding or missing donors make it hard."""

import os
import time
from pathlib import Path

import numpy as np

from diag.report import tensor_text
from diag.tensors.matching import Origin, Votes
from tests.tensors.world import BLOCK, Array, Key, compared, each, everywhere, pair, request, run, verdicts


def noisy(content: dict[Key, Array], share: float, seed: int) -> dict[Key, Array]:
    """The same request in another run whose kernels round otherwise, V of layer 0 included."""
    chance = np.random.default_rng(seed)
    return {key: (rows * (1 + share * chance.standard_normal(rows.shape))).astype(rows.dtype) for key, rows in content.items()}


def test_a_donor_is_recognised_through_rounding(tmp_path: Path) -> None:
    good, bad = pair(dtype="float16")
    theirs = request(2, dtype="float16")
    for key, rows in noisy(theirs, 4e-3, 3).items():
        bad.block(key, 1)[:] = rows[2 * BLOCK : 3 * BLOCK]
    donors = {"stranger": run(request(4, dtype="float16"), (0, 1, 2, 3)), "owner": run(theirs, (8, 9, 10, 11))}
    found = compared(tmp_path / "w", good, bad, donors)
    assert verdicts(found) == everywhere({1: "aliased"})
    assert {(i.alias.request, i.alias.block, i.alias.by) for i in found.results if i.alias is not None} == {("owner", 2, "noise")}


def test_v_of_layer_0_tells_whose_tokens_they_are(tmp_path: Path) -> None:
    """Computed after another prefix: only V of layer 0, which depends on the token alone, is that of the donor."""
    good, bad = pair()
    theirs, elsewhere = request(2), request(5)
    for key in bad.pools:
        rows = theirs[key] if key == (0, 0, "v") else elsewhere[key]
        bad.block(key, 1)[:] = rows[BLOCK : 2 * BLOCK]
    found = compared(tmp_path / "w", good, bad, {"same-words": run(theirs, (0, 1, 2, 3))})
    assert verdicts(found) == everywhere({1: "aliased"})
    for item in found.results:
        if item.alias is not None:
            assert (item.alias.request, item.alias.block) == ("same-words", 1)
            assert item.alias.by == ("block" if (item.layer, item.role) == (0, "v") else "fingerprint")


def test_a_few_common_tokens_in_layer_0_prove_nothing(tmp_path: Path) -> None:
    good, bad = pair()
    theirs, other = request(2), request(5)
    for key in bad.pools:
        block = bad.block(key, 1)
        block[:] = other[key][:BLOCK]
        if key == (0, 0, "v"):
            block[3:7] = theirs[key][3:7]
    found = compared(tmp_path / "w", good, bad, {"stranger": run(theirs, (0, 1, 2, 3))})
    assert verdicts(found) == everywhere({1: "different"})


def test_the_donor_that_explains_most_tensors_is_named(tmp_path: Path) -> None:
    """Two donors begin with the same words; only one of them holds all that is in the block."""
    good, bad = pair()
    owner = request(2)
    twin = request(6)
    twin[(0, 0, "v")] = owner[(0, 0, "v")]
    for key in bad.pools:
        bad.block(key, 2)[:] = owner[key][:BLOCK]
    found = compared(tmp_path / "w", good, bad, {"a-twin": run(twin, (0, 1, 2, 3)), "owner": run(owner, (4, 5, 6, 7))})
    assert {(i.alias.request, i.alias.block, i.alias.by) for i in found.results if i.alias is not None} == {("owner", 0, "block")}


def test_the_bad_run_s_own_pool_is_searched_last(tmp_path: Path) -> None:
    """Another physical block of the bad run holds the same: not of this request, and no donor has it."""
    good, bad = pair()
    chance = np.random.default_rng(8)
    for key, pool in bad.pools.items():
        pool[11] = chance.standard_normal(pool[11].shape)
        bad.block(key, 0)[:] = pool[11]
    found = compared(tmp_path / "w", good, bad)
    assert verdicts(found) == everywhere({0: "aliased"})
    assert {(i.alias.dump, i.alias.physical, i.alias.block) for i in found.results if i.alias is not None} == {("bad", 11, None)}


def test_the_same_dump_as_a_donor_changes_nothing(tmp_path: Path) -> None:
    from diag.tensors.compare import Options, compare
    from diag.tensors.cutting import How
    from tests.tensors.world import opened

    good, bad = pair()
    each(bad, 0, lambda block: block.fill(1.5))
    folders = [one.write(tmp_path / name) for name, one in (("good", good), ("bad", bad))]
    found = compare(*map(opened, folders), others=[opened(folders[1]), opened(folders[0])], options=Options(How(BLOCK)))
    assert found.donors == []
    assert [note for note in found.notes if "is dropped" in note] == [
        "donor bad is dropped: it is the bad dump itself", "donor good is dropped: it is the good dump itself, which is searched in any case",
    ]  # fmt: skip
    assert verdicts(found) == everywhere({0: "different"})


def test_dumps_of_one_name_are_told_apart(tmp_path: Path) -> None:
    from diag.tensors.compare import compare
    from tests.tensors.world import opened

    good, bad = pair()
    found = compare(opened(good.write(tmp_path / "one" / "npy")), opened(bad.write(tmp_path / "two" / "npy")))
    assert (found.good.name, found.bad.name) == ("one/npy", "two/npy")


def test_of_equal_donors_the_one_that_ran_before_is_named(tmp_path: Path) -> None:
    from diag.tensors.compare import Options, compare
    from diag.tensors.cutting import How
    from tests.tensors.world import opened

    good, bad = pair()
    owner = request(2)
    for key in bad.pools:
        bad.block(key, 1)[:] = owner[key][:BLOCK]
    donors = [opened(run(owner, (0, 1, 2, 3)).write(tmp_path / f"request-{number}")) for number in (12, 7, 15)]
    found = compare(
        opened(good.write(tmp_path / "good")), opened(bad.write(tmp_path / "request-10")), others=donors, options=Options(How(BLOCK))
    )
    assert {(i.alias.request, *(other.request for other in i.alias.others)) for i in found.results if i.alias is not None} == {("request-7", "request-12", "request-15")}
    assert all((item.detail or "").endswith("block 0 of request-7, or of block 0 of request-12, or of block 0 of request-15") for item in found.results if item.is_wrong)
    facts = [text for label, text in tensor_text._facts(found) if label == "Whose"]
    assert facts == ["block 1 is block 0 of request-7 (or of block 0 of request-12, or of block 0 of request-15), in 8 of 8 cache tensors"]


def test_where_names_tell_nothing_the_times_of_the_files_do_and_all_that_fit_are_named(tmp_path: Path) -> None:
    from diag.tensors.compare import Options, compare
    from diag.tensors.cutting import How
    from tests.tensors.world import opened

    good, bad = pair()
    owner = request(2)
    for key in bad.pools:
        bad.block(key, 1)[:] = owner[key][:BLOCK]
    now = time.time()
    dumps = {}
    for name, age in (("late", 60), ("middle", 300), ("early", 400), ("bad", 200)):
        one = bad if name == "bad" else run(owner, (0, 1, 2, 3))
        folder = one.write(tmp_path / name)
        for path in folder.rglob("*"):
            os.utime(path, (now - age, now - age))
        dumps[name] = opened(folder)
    found = compare(
        opened(good.write(tmp_path / "good")), dumps["bad"], others=[dumps[name] for name in ("late", "middle", "early")], options=Options(How(BLOCK))
    )
    aliases = {item.alias for item in found.results if item.alias is not None}
    assert {(one.request, tuple(other.dump for other in one.others)) for one in aliases} == {("early", ("late", "middle"))}


def test_a_dump_without_layer_0_says_that_the_tokens_cannot_be_told(tmp_path: Path) -> None:
    good, bad = pair()
    for one in (good, bad):
        one.pools = {key: pool for key, pool in one.pools.items() if key[1] != 0}
    strange = np.random.default_rng(8)
    for key in bad.pools:
        bad.block(key, 1)[:] = strange.standard_normal(bad.block(key, 1).shape)
    assert any("no V of layer 0" in note for note in compared(tmp_path / "without", good, bad).notes)
    whole, other = pair()
    for key in other.pools:
        other.block(key, 1)[:] = strange.standard_normal(other.block(key, 1).shape)
    assert not any("no V of layer 0" in note for note in compared(tmp_path / "with", whole, other).notes)


def test_the_owner_of_every_wrong_block_is_told_by_most_of_its_tensors(tmp_path: Path) -> None:
    """Block 2 has the tokens of `owner`; a quarter of its rows above layer 0 is of `quarter`, which makes it nobody's."""
    good, bad = pair()
    owner, quarter = request(2), request(3)
    chance = np.random.default_rng(8)
    for key in bad.pools:
        bad.block(key, 0)[:] = owner[key][:BLOCK]
        block = bad.block(key, 2)
        block[:] = chance.standard_normal(block.shape)
        if key[1] == 0:
            block[:12] = owner[key][BLOCK : BLOCK + 12]
        block[12:] = quarter[key][:4]
    found = compared(tmp_path / "w", good, bad, {"owner": run(owner, (0, 1, 2, 3)), "quarter": run(quarter, (0, 1, 2, 3))})
    assert {i.alias.request for i in found.results if i.alias is not None} == {"owner"}
    facts = [text for label, text in tensor_text._facts(found) if label == "Whose"]
    assert facts[0] == "block 0 is block 0 of owner, in 8 of 8 cache tensors"
    assert facts[1].startswith("block 2 has the tokens of block 1 of owner (12 of 16 rows), by V of layer 0"), facts


def test_rows_that_repeat_have_no_vote() -> None:
    votes = Votes()
    rows = [b"a", b"b", b"zero", b"zero", b"zero"]
    votes.want("block", dict(enumerate(rows, 100)), rows, 100)
    votes.offer(Origin("d", "k", None, None), 7, 40, [b"zero", b"a", b"b", b"zero"])
    (match,) = votes.best("block")
    assert (match.rows, match.block, match.shift) == (2, 7, 41 - 100)
    votes.offer(Origin("e", "k", None, None), 3, 48, rows)
    assert [(match.origin.dump, match.rows) for match in votes.best("block")] == [("e", 5), ("d", 2)]
