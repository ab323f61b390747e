"""Any folder or file, and opening as such: listing, growth, links, limits, what changed meanwhile."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from diag.errors import BadInput
from diag.tensors import opening
from diag.tensors.dump import Tensor
from diag.tensors.opening import open_dump, still_same


def save(path: Path, value: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.full((2, 3), value, np.float32))
    return path


def names(path: Path) -> list[str]:
    return [tensor.name for tensor in open_dump(path, settle_s=0).tensors]


def test_names_and_order_are_those_of_the_paths(tmp_path: Path) -> None:
    for name in ("layers.10.k_cache", "layers.9.k_cache", "layers.9.v_cache", "block_tables"):
        save(tmp_path / f"{name}.npy")
    dump = open_dump(tmp_path, settle_s=0)
    assert dump.layout == "files"
    assert dump.name == tmp_path.name
    assert [(tensor.name, tensor.layer, tensor.role, tensor.order) for tensor in dump.tensors] == [
        ("block_tables", None, "block_table", 0), ("layers.9.k_cache", 9, "k", 1), ("layers.9.v_cache", 9, "v", 2), ("layers.10.k_cache", 10, "k", 3),
    ]  # fmt: skip


def test_rank_and_step_leave_the_name(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step in (0, 2):
            save(tmp_path / f"step{step}/rank{rank}/attn.input.0.npy")
    assert [(tensor.name, tensor.rank, tensor.step, tensor.op, tensor.direction) for tensor in open_dump(tmp_path, settle_s=0).tensors] == [
        ("attn.input.0", rank, step, "attn", "input") for rank in (0, 1) for step in (0, 2)
    ]


def test_keys_of_a_file_with_several_tensors(tmp_path: Path) -> None:
    np.savez(tmp_path / "kv.npz", **{"layers.10.k": np.ones(2), "layers.9.k": np.ones(2)})
    save(tmp_path / "alone.npy")
    np.savez(tmp_path / "one.npz", x=np.ones(2))
    assert names(tmp_path) == ["alone", "kv/layers.9.k", "kv/layers.10.k", "one"]
    assert names(tmp_path / "kv.npz") == ["layers.9.k", "layers.10.k"]
    assert names(tmp_path / "alone.npy") == ["alone"]


def test_what_is_no_tensor_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.npy")
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "short.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    (tmp_path / "link.npy").symlink_to(tmp_path / "a.npy")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.npy")
    dump = open_dump(tmp_path, settle_s=0)
    assert [tensor.name for tensor in dump.tensors] == ["a"]
    reasons = {Path(item.source).name: item.reason for item in dump.unread}
    assert reasons.keys() == {"README.md", "empty.npy", "short.npy", "link.npy", "loop", "pipe.npy"}
    assert reasons["README.md"] == "not a tensor file of a known format"
    assert reasons["link.npy"] == reasons["loop"] == "a link, not followed"
    assert reasons["pipe.npy"] == "not a regular file"
    assert "24 bytes" in reasons["short.npy"], reasons


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "pipe"])
def test_nothing_to_compare_is_a_clear_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d"
    if kind == "empty":
        path.mkdir()
    elif kind == "text":
        path.mkdir()
        for number in range(5):
            (path / f"{number}.log").write_text("no tensor")
    elif kind == "pipe":
        os.mkfifo(path)
    says = {"missing": "No such file", "empty": "holds no tensor", "text": "0.log: not a tensor file.*and 2 more", "pipe": "neither a file nor a folder"}
    with pytest.raises(BadInput, match=says[kind]) as caught:
        open_dump(path, settle_s=0)
    assert caught.value.hint


def test_one_name_is_one_tensor(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", 1)
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    assert names(tmp_path) == ["a", "a#2"]


WRITER = """
import sys, time
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        file.write(b"x")
        time.sleep(0.002)
"""


def test_a_growing_dump_is_named_not_compared(tmp_path: Path) -> None:
    save(tmp_path / "a.npy")
    growing = tmp_path / "growing.npy"
    growing.write_bytes(b"")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(growing)])
    try:
        deadline = time.monotonic() + 20
        while growing.stat().st_size == 0:
            assert time.monotonic() < deadline, "the writer never wrote"
        with pytest.raises(BadInput, match=r"still being written: .*growing\.npy went from [0-9,]+ to [0-9,]+ bytes") as caught:
            open_dump(tmp_path, settle_s=0.5)
        assert "wait" in caught.value.hint
    finally:
        writer.kill()
        writer.wait()


ADDER = """
import sys, time
number = 0
while True:
    number += 1
    open(f"{sys.argv[1]}/{number}.bin", "x").close()
    time.sleep(0.002)
"""


def test_a_file_that_appears_while_settling_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.npy")
    adder = subprocess.Popen([sys.executable, "-c", ADDER, str(tmp_path)])
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "1.bin").exists():
            assert time.monotonic() < deadline, "nothing was added"
        with pytest.raises(BadInput, match=r"still being written: .*[0-9]+\.bin appeared"):
            open_dump(tmp_path, settle_s=0.5)
    finally:
        adder.kill()
        adder.wait()


def test_an_old_dump_is_not_looked_at_twice(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy")
    os.utime(path, (time.time() - 60, time.time() - 60))
    assert [tensor.name for tensor in open_dump(tmp_path, settle_s=10_000).tensors] == ["a"]


def test_what_changed_since_opening_is_told(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        save(tmp_path / f"{name}.npy")
    dump = open_dump(tmp_path, settle_s=0)
    assert still_same(dump) == []
    np.save(tmp_path / "a.npy", np.ones(100))
    (tmp_path / "b.npy").unlink()
    os.utime(tmp_path / "c.npy", ns=(1, 1))
    save(tmp_path / "e.npy")
    told = [text.removeprefix(f"{tmp_path}/") for text in still_same(dump)]
    assert told == ["a.npy went from 152 to 928 bytes", "b.npy is gone", "c.npy was written again", "e.npy appeared"]
    alone = open_dump(tmp_path / "d.npy", settle_s=0)
    (tmp_path / "d.npy").unlink()
    (told_,) = still_same(alone)
    assert "No such file" in told_


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MAX_FILES", 20)
    for number in range(21):
        save(tmp_path / f"{number}.npy")
    with pytest.raises(BadInput, match="holds more than 20 files"):
        open_dump(tmp_path, settle_s=0)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.npy")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    (unread,) = open_dump(tmp_path, settle_s=0).unread
    assert "Permission denied" in unread.reason


def test_names_that_are_no_text(tmp_path: Path) -> None:
    save(tmp_path / "a.npy")
    (tmp_path / os.fsdecode(b"k\xff\n.npy")).write_bytes((tmp_path / "a.npy").read_bytes())
    dump = open_dump(tmp_path, settle_s=0)
    assert len(dump.tensors) == 2
    assert all(isinstance(tensor, Tensor) for tensor in dump.tensors)
