"""Bundles: what is written can be read, what was altered or is hostile cannot, and an interrupted one is still evidence."""

import contextlib
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from diag import bundle_reader as bundle
from diag.bundle import Door, Writer
from diag.errors import BundleError
from diag.redact import Redactor


def written(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "b", Redactor(), {"hostname": "h"}, {"pid": 1})
    writer.log("begin", collector="threads", feeds=["threads"])
    door = Door(writer, "threads", 1 << 20)
    door.text("a.txt", "first\nsecond\n")
    door.json("b.json", {"x": [1, None, "y"]})
    door.side_effect("pause_ms", 1.5)
    writer.log("end", collector="threads", status="ok", seconds=0.1, reason=None, feeds=["threads"], notes=[])
    return writer.close(tmp_path / "b.zip")


def test_round_trip(tmp_path: Path) -> None:
    opened = bundle.read(written(tmp_path))
    assert [a.path for a in opened.artefacts] == ["threads/a.txt", "threads/b.json"]
    assert opened.artefacts[0].text() == "first\nsecond\n"
    assert json.loads(opened.artefacts[1].bytes()) == {"x": [1, None, "y"]}
    assert opened.manifest.collectors["threads"].status == "ok"
    assert opened.manifest.side_effects == {"pause_ms": 1.5}
    assert opened.manifest.finished_at is not None


def test_only_the_owner_may_read_it_and_the_folder_is_gone(tmp_path: Path) -> None:
    archive = written(tmp_path)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert not (tmp_path / "b").exists()


def interrupted(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "b", Redactor(), {"hostname": "h"}, {"pid": 1})
    writer.log("begin", collector="threads", feeds=["threads"])
    Door(writer, "threads", 1 << 20).text("a.txt", "whole")
    writer.abandon()
    return tmp_path / "b"


def test_an_interrupted_folder_is_a_bundle(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    (folder / "artefacts" / "threads" / "b.txt").write_text("cut sho")
    with (folder / "manifest.jsonl").open("a") as journal:
        journal.write('{"event": "artef')
    opened = bundle.read(folder)
    assert [a.path for a in opened.artefacts] == ["threads/a.txt"]
    assert opened.manifest.dropped == ("artefacts/threads/b.txt",)
    assert opened.manifest.collectors["threads"].status == "partial"


def test_a_truncated_last_artefact_is_dropped_and_listed(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    (folder / "artefacts" / "threads" / "a.txt").write_text("who")
    opened = bundle.read(folder)
    assert opened.artefacts == ()
    assert opened.manifest.dropped == ("artefacts/threads/a.txt",)


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    artefact = folder / "artefacts" / "threads" / "a.txt"
    artefact.unlink()
    artefact.symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="link"):
        bundle.read(folder)


def rewritten(archive: Path, name: str, data: bytes, **manifest: object) -> Path:
    """The same bundle with one member replaced or added, or manifest fields changed."""
    out = archive.with_name("altered.zip")
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == "manifest.json" and manifest:
                content = json.dumps(json.loads(content) | manifest).encode()
            if info.filename != name:
                new.writestr(info.filename, content)
        if name:
            new.writestr(name, data)
    return out


def test_an_altered_artefact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"a\.txt does not have the digest"):
        bundle.read(rewritten(written(tmp_path), "artefacts/threads/a.txt", b"other"))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "artefacts/../../evil", "a\\..\\b", "C:/evil"])
def test_unsafe_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match="unsafe member name"):
        bundle.read(rewritten(written(tmp_path), name, b"x"))


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"llmdiag\.bundle/2"):
        bundle.read(rewritten(written(tmp_path), "", b"", schema="llmdiag.bundle/2"))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema": 1}', b"{" * 100_000, b"\xff\xfe"])
def test_a_damaged_manifest_is_a_clear_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BundleError, match="not a manifest"):
        bundle.read(rewritten(written(tmp_path), "manifest.json", data))


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("manifest.json", b"{}")
        for number in range(9):
            packed.writestr(f"artefacts/x/{number}", b"\0" * (8 << 20))
    with pytest.raises(BundleError, match="unpacks to"):
        bundle.read(bomb)


@pytest.mark.parametrize("line", ["retry 0\n", ".\n", "INFO 11-30 02:54:39 loggers.py:248] Engine 000: Avg prompt throughput: 0.0\n"])
def test_a_log_that_says_one_thing_for_ever_is_no_bomb(tmp_path: Path, line: str) -> None:
    writer = Writer(tmp_path / "b", Redactor(), {"hostname": "h"}, {"pid": 1})
    Door(writer, "logs", 96 << 20).text("0-short.log", (line * (1 + (8 << 20) // len(line))).encode())
    writer.log("end", collector="logs", status="ok", seconds=0.1, reason=None, feeds=["log_events"], notes=[])
    (artefact,) = bundle.read(writer.close(tmp_path / "b.zip")).artefacts
    assert artefact.bytes().startswith(line.encode()[:4])


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "link.zip"
    with zipfile.ZipFile(out, "w") as packed:
        info = zipfile.ZipInfo("artefacts/x/y")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(info, "/etc/passwd")
    with pytest.raises(BundleError, match="link"):
        bundle.read(out)


def test_every_truncation_of_a_bundle_is_a_clear_error(tmp_path: Path) -> None:
    archive = written(tmp_path)
    data = archive.read_bytes()
    for length in range(0, len(data), 37):
        cut = tmp_path / "cut.zip"
        cut.write_bytes(data[:length])
        with pytest.raises(BundleError):
            bundle.read(cut)


def test_every_flipped_byte_is_an_error_or_harmless(tmp_path: Path) -> None:
    archive = written(tmp_path)
    data = bytearray(archive.read_bytes())
    whole = [a.bytes() for a in bundle.read(archive).artefacts]
    for place in range(0, len(data), 11):
        data[place] ^= 0x55
        flipped = tmp_path / "flip.zip"
        flipped.write_bytes(data)
        with contextlib.suppress(BundleError):
            assert [a.bytes() for a in bundle.read(flipped).artefacts] == whole
        data[place] ^= 0x55


def test_a_place_that_cannot_be_written_is_said_before_anything_is_collected(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nothing was collected yet"):
        Writer(tmp_path / "no" / "such" / "b", Redactor(), {}, {})


def test_a_full_disk_is_a_clear_error_and_keeps_what_there_is(tmp_path: Path) -> None:
    """A file size limit stands for a full disk: the write fails half-way."""
    script = f"""
import resource, signal, sys
from pathlib import Path
from diag.bundle import Door, Writer
from diag.errors import BundleError
from diag.redact import Redactor
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = Writer(Path({str(tmp_path / "b")!r}), Redactor(), {{"hostname": "h"}}, {{"pid": 1}})
writer.log("begin", collector="x", feeds=["threads"])
door = Door(writer, "x", 1 << 30)
door.text("small.txt", "small")
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
    door.text("big.txt", "line\\n" * 10000)
except BundleError as error:
    writer.abandon()
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(Path(bundle.__file__).parents[1])})
    assert "cannot write" in done.stdout
    assert [a.path for a in bundle.read(tmp_path / "b").artefacts] == ["x/small.txt"]


def test_the_size_budget_of_a_collector_is_kept_and_said(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "b", Redactor(), {}, {})
    door = Door(writer, "x", 10)
    door.text("big.txt", "more than ten bytes")
    assert [note.table_name for note in door.notes] == ["*"]
    assert "size budget" in door.notes[0].reason
    assert door.artefacts == []
    writer.abandon()


def test_a_file_that_is_not_text_is_dropped_and_said(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "b", Redactor(), {}, {})
    door = Door(writer, "x", 1 << 20)
    door.text("binary", b"\xff\xfe\x00")
    assert "binary was dropped" in door.notes[0].reason
    assert door.artefacts == []
    writer.abandon()


def test_a_secret_that_only_a_late_artefact_names_is_taken_out_of_the_early_ones(tmp_path: Path) -> None:
    secret = "q7w6e5r4t3y2"
    writer = Writer(tmp_path / "b", Redactor(), {"hostname": "h"}, {"pid": 1})
    door = Door(writer, "x", 1 << 20)
    door.text("early.txt", f"alias {secret}\n")
    door.jsonl("early.jsonl", [{"a": 1, "cmd": f"--alias \"{secret}\""}, {"b": [f"pool-{secret}", 2, None]}])
    door.json("early.json", {"alias": secret, "n": 12})
    door.text("other.txt", "nothing")
    assert secret in (tmp_path / "b" / "artefacts" / "x" / "early.txt").read_text()
    door.text("late.txt", f"secret_key={secret}\n")
    opened = bundle.read(writer.close(tmp_path / "b.zip"))
    assert [a.path for a in opened.artefacts] == ["x/early.txt", "x/early.jsonl", "x/early.json", "x/other.txt", "x/late.txt"]
    texts = {a.name: a.text() for a in opened.artefacts}
    assert not any(secret in text for text in texts.values())
    token = texts["late.txt"].partition("=")[2].strip()
    assert texts["early.txt"] == f"alias {token}\n"
    assert json.loads(texts["early.json"]) == {"alias": token, "n": 12}
    assert [json.loads(line) for line in texts["early.jsonl"].splitlines()] == [{"a": 1, "cmd": f"--alias \"{token}\""}, {"b": [f"pool-{token}", 2, None]}]
    assert {entry.path: entry.redactions for entry in opened.manifest.artefacts}["artefacts/x/early.txt"] == 1
    assert sum(opened.manifest.redacted.values()) == 5


def test_without_redaction_nothing_is_swept(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "b", Redactor(enabled=False), {"hostname": "h"}, {"pid": 1})
    door = Door(writer, "x", 1 << 20)
    door.text("early.txt", "alias q7w6e5r4t3y2")
    door.text("late.txt", "secret_key=q7w6e5r4t3y2")
    assert [a.text() for a in bundle.read(writer.close(tmp_path / "b.zip")).artefacts] == ["alias q7w6e5r4t3y2", "secret_key=q7w6e5r4t3y2"]
