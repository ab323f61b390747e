"""samples/index.toml: one entry per sample, from the sample.toml files, the tests of the rules and the evidence itself.

    python -m tests.corpus.index        # write it anew

    [[sample]]
    name = "lock-cycle/incident"
    expect = ["lock-cycle"]             # rules that must be named, the answer first; [] = nothing may be found
    abstain = false                     # true: the cause is not known or the evidence cannot tell, so nothing may be confirmed
    origin = "lab"                      # captured (a real engine) | lab | reconstructed | held-out
    engine = "python"
    version = ""
    evidence = ["processes", "stacks"]  # collectors that read something
    case = ""                           # public case that it was made after
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diag import rules, ruletest
from diag.collectors import discover
from diag.sources import sources_of

SAMPLES = Path(__file__).parents[2] / "samples"
INDEX = SAMPLES / "index.toml"
REAL = ("vllm-0.32",)
"""Folders whose records are of a real engine."""


def entries() -> Iterator[dict[str, Any]]:
    """What the index must say, in the order of the names."""
    wanted = _wanted()
    for path in sorted(SAMPLES.rglob("sample.toml")):
        about = tomllib.loads(path.read_text("utf-8"))
        folder = path.parent.relative_to(SAMPLES).as_posix()
        for name, text in about["samples"].items():
            yield _entry(f"{folder}/{name}", text, about, about.get("labels", {}).get(name, {}), wanted)


def _wanted() -> dict[str, list[str]]:
    """Sample -> rules whose own tests say that they match it; those that explain others first."""
    found: dict[str, list[str]] = {}
    shipped = rules.load(rules.shipped())
    for rule in sorted(shipped, key=lambda rule: (bool(rule.explained_by), -len(rule.explains), rule.id)):
        for test in rule.tests:
            if test.expect in ("confirmed", "likely"):
                found.setdefault(test.sample, []).append(rule.id)
    return found


def _entry(name: str, text: str, about: dict[str, Any], label: dict[str, Any], wanted: dict[str, list[str]]) -> dict[str, Any]:
    folder = name.partition("/")[0]
    reconstructed = about.get("reconstructed") or "(reconstructed)" in text
    origin = "reconstructed" if reconstructed else "captured" if folder.startswith(REAL) or "real" in name else "lab"
    return {
        "name": name,
        "expect": label.get("expect", wanted.get(name, [])),
        "abstain": bool(label.get("abstain", False)),
        "origin": label.get("origin", origin),
        "engine": label.get("engine", about.get("engine", "vllm" if "vllm" in name else "python")),
        "version": label.get("version", about.get("version", "0.32.0" if "vllm-0.32" in name else "")),
        "evidence": _kinds(name),
        "case": label.get("case", ""),
    }


def _kinds(name: str) -> list[str]:
    """Collectors that have something of this sample to read."""
    collectors = discover()
    found = sources_of([ruletest.sample_path(name, rules.shipped())], collectors)
    return sorted({collector for source in found for collector, artefacts in source.artefacts.items() if artefacts})


def written() -> str:
    """The text of the index."""
    lines = ["# One entry per sample; written by python -m tests.corpus.index, which says what the keys mean.", ""]
    for entry in entries():
        lines.append("[[sample]]")
        lines += [f"{key} = {_toml(value)}" for key, value in entry.items()]
        lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    INDEX.write_text(written(), encoding="utf-8")
