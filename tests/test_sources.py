"""Folders of bundles: each bundle in them is one, what lies beside them is loose evidence, and a trap costs nothing else."""

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from diag import evidence, sources
from diag.errors import BadInput
from diag.loose_years import years_beside
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

GHOSTS = SAMPLES / "ghost-key-retry-loop"
COLLECTORS = evidence.collectors_of(evidence.Extras())
METRICS = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 1.0\n'


def names(*paths: Path) -> list[str]:
    return [source.name for source in sources.sources_of(paths, COLLECTORS)]


def analyze(folder: Path) -> dict[str, Any]:
    said = llmdiag("analyze", str(folder), "-f", "json")
    assert said.code in (0, 1, 3), said.err
    return said.json


def unpacked(bundle: Path, place: Path) -> None:
    with zipfile.ZipFile(bundle) as packed:
        packed.extractall(place)


def test_two_bundles_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    shutil.copy(GHOSTS / "incident.zip", tmp_path / "a.zip")
    shutil.copy(GHOSTS / "idle-healthy.zip", tmp_path / "deep" / "er" / "b.zip")
    found = analyze(tmp_path)
    assert found["findings"][0]["rule"] == "ghost-key-retry-loop"
    assert found["subject"]["unrecognised"] == []
    assert names(tmp_path) == ["a", "b"]


def test_bundles_folders_and_loose_files_in_one_folder(tmp_path: Path) -> None:
    shutil.copy(GHOSTS / "incident.zip", tmp_path / "a.zip")
    unpacked(GHOSTS / "idle-healthy.zip", tmp_path / "whole")
    unpacked(GHOSTS / "busy-healthy.zip", tmp_path / "half")
    manifest = json.loads((tmp_path / "half" / "manifest.json").read_text())
    (tmp_path / "half" / "manifest.json").unlink()
    journal = [{"event": "open", **{k: manifest[k] for k in ("schema", "tool_version", "host", "target", "started_at")}}]
    journal += [{"event": "artefact", **entry} for entry in manifest["artefacts"]]
    (tmp_path / "half" / "manifest.jsonl").write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in journal))
    (tmp_path / "metrics1.txt").write_text(METRICS)
    assert names(tmp_path) == ["a", "half", "whole", tmp_path.name]
    loose = sources.sources_of([tmp_path], COLLECTORS)[-1]
    assert [artefact.path for found in loose.artefacts.values() for artefact in found] == ["metrics1.txt"]
    assert loose.unknown == ()


def test_a_bundle_that_is_given_and_found_is_one(tmp_path: Path) -> None:
    shutil.copy(GHOSTS / "incident.zip", tmp_path / "a.zip")
    assert names(tmp_path / "a.zip", tmp_path) == ["a"]


def test_what_is_no_bundle_costs_no_other(tmp_path: Path) -> None:
    shutil.copy(GHOSTS / "incident.zip", tmp_path / "a.zip")
    (tmp_path / "cut.zip").write_bytes((GHOSTS / "incident.zip").read_bytes()[:3000])
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("hello.txt", "world")
    (tmp_path / "text.zip").write_text("no zip")
    (tmp_path / "link.zip").symlink_to(GHOSTS / "idle-healthy.zip")
    (tmp_path / "folder").symlink_to(SAMPLES)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "a web page"}')
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "manifest.json").write_text('{"schema": "llmdiag.bundle/99"}')
    (tmp_path / "newer" / "metrics2.txt").write_text(METRICS)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "manifest.jsonl")
    found = analyze(tmp_path)
    assert found["findings"][0]["rule"] == "ghost-key-retry-loop"
    unrecognised = found["subject"]["unrecognised"]
    assert [name.partition(" ")[0] for name in sorted(unrecognised)] == [
        "cut.zip", "folder", "link.zip", "newer", "other.zip", "pipe/manifest.jsonl", "text.zip", "web/manifest.json",
    ]
    whys = {name.partition(" ")[0]: name.partition(" ")[2] for name in unrecognised}
    assert "not a readable zip" in whys["cut.zip"]
    assert "has no manifest.json" in whys["other.zip"]
    assert "llmdiag.bundle/99" in whys["newer"]
    assert not any(str(tmp_path) in name for name in unrecognised)


def test_a_folder_of_too_many_bundles_is_refused(tmp_path: Path) -> None:
    for number in range(sources.MAX_BUNDLES + 1):
        (tmp_path / f"{number}.zip").write_bytes(sources.ARCHIVE_MARK)
    with pytest.raises(BadInput, match="more than 200 bundles"):
        names(tmp_path)


def test_bundles_that_unpack_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        shutil.copy(GHOSTS / "incident.zip", tmp_path / f"{name}.zip")
    manifest = sources.sources_of([tmp_path / "a.zip"], COLLECTORS)[0].manifest
    assert manifest is not None
    size = sum(entry.bytes for entry in manifest.artefacts)
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        whole = sum(info.file_size for info in packed.infolist())
    monkeypatch.setattr(sources.bundle_reader, "MAX_TOTAL_BYTES", max(2 * size + 1, whole))
    with pytest.raises(BadInput, match="unpack to more than"):
        names(tmp_path)


VLLM = b"INFO 11-13 09:04:47 [core.py:1] x\nINFO 11-14 00:00:01 [core.py:1] y\n"


@pytest.mark.parametrize(("heads", "years"), [
    ({"a.log": VLLM, "dmesg.txt": b"[Thu Nov 13 09:04:47 2025] NVRM: Xid\n"}, {"a.log": 2025}),
    ({"a.log": VLLM, "b.log": b"2025-11-14T08:42:39Z swapper idle\n"}, {"a.log": 2025}),
    ({"messages": b"Nov 13 09:04:47 host kernel: x\n", "b.log": b"2025-11-13 08:42:39 x\n"}, {"messages": 2025}),
    ({"a.log": VLLM, "b.log": b"2025-11-12T08:42:39Z another day\n"}, {}),
    ({"a.log": VLLM, "b.log": b"2025-11-13T08:42:39Z x\n", "c.log": b"2024-11-13T08:42:39Z x\n"}, {}),
    ({"a.log": VLLM}, {}),
    ({"a.log": b"2025-11-13 09:04:47 INFO its own year\n11-13 09:04:47 x\n", "b.log": b"2024-11-13T08:42:39Z x\n"}, {}),
    ({"a.log": b"INFO 19-45 09:04:47 no day\n", "b.bin": b"\xff\xfe", "c": b""}, {}),
])
def test_the_year_of_a_log_is_that_of_a_dated_file_of_the_same_day(heads: dict[str, bytes], years: dict[str, int]) -> None:
    assert years_beside(heads) == years


def test_a_year_that_a_person_gives_goes_before(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(VLLM * 4)
    (tmp_path / "dmesg.txt").write_text("[Thu Nov 13 09:04:47 2025] NVRM: Xid (PCI:0000:41:00): 31, pid=7, x\n")
    for dates, want in ((sources.Dates(), 2025), (sources.Dates(year=2023), 2023)):
        (source,) = sources.sources_of([tmp_path], COLLECTORS, dates)
        assert {item.year for item in source.artefacts["logs"]} == {want}
