"""How the files of a recorded sample are read, changed and written as another one."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Files = dict[str, str]
"""Path in the bundle (or folder) -> text."""
WHEN = (2026, 11, 30, 9, 0, 0)


def read(sample: str) -> Files:
    """A recorded bundle, or a folder of loose files."""
    bundle = HERE / f"{sample}.zip"
    if bundle.exists():
        with zipfile.ZipFile(bundle) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}
    return {path.name: path.read_text() for path in sorted((HERE / sample).iterdir())}


def write(sample: str, files: Files) -> None:
    """A bundle with a manifest that fits, or a folder."""
    if "manifest.json" not in files:
        (HERE / sample).mkdir(exist_ok=True)
        for name, text in files.items():
            (HERE / sample / name).write_text(text)
        return
    manifest = json.loads(files["manifest.json"])
    redactions = {entry["path"]: entry["redactions"] for entry in manifest["artefacts"]}
    manifest["artefacts"] = [
        {
            "path": name, "sha256": hashlib.sha256(text.encode()).hexdigest(), "bytes": len(text.encode()), "collector": name.split("/")[1],
            "redactions": redactions.get(name, 0),
        }
        for name, text in files.items()
        if name != "manifest.json"
    ]  # fmt: skip
    with zipfile.ZipFile(HERE / f"{sample}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**files, "manifest.json": json.dumps(manifest, indent=1)}.items():
            archive.writestr(zipfile.ZipInfo(name, WHEN), text, zipfile.ZIP_DEFLATED)


def named(files: Files, words: str) -> list[str]:
    """Artefacts with this in their path, in order."""
    return sorted(name for name in files if words in name)


def dumps(files: Files) -> list[str]:
    """The stacks, one name per sample."""
    return [name for name in named(files, "/stacks/") if not name.endswith("dumps.jsonl")]


def change_stacks(files: Files, change: Callable[[int, dict[str, Any]], None], names: list[str] | None = None) -> None:
    """Call `change(sample, thread)` for each thread of each dump."""
    for sample, name in enumerate(names or dumps(files)):
        dump = json.loads(files[name])
        for thread in dump["threads"] if isinstance(dump, dict) else dump:
            change(sample, thread)
        files[name] = json.dumps(dump, separators=(",", ":"))


def change_lines(files: Files, words: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """JSON lines of these artefacts, each changed, or left out."""
    for name in named(files, words):
        lines = [change(json.loads(line)) for line in files[name].splitlines()]
        files[name] = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines if line is not None)


def keep_dumps(files: Files, *kept: int) -> None:
    """Only these samples of the stacks were taken."""
    for sample, name in enumerate(dumps(files)):
        if sample not in kept:
            del files[name]
    change_lines(files, "/stacks/dumps.jsonl", lambda line: line if line.get("sample") in (None, *kept) else None)
