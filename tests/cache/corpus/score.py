"""Holds a cache scan against the truth: recall per reason, and every honest key that was called a hard ghost.

python score.py truth.jsonl scan.json        (scan.json: llmdiag scan-cache redis://... --format json; - reads it from standard input)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Key = tuple[int, str]


def read_scan(path: str) -> dict[Key, dict[str, Any]]:
    """(db, key_hex) -> what the scan says about the key."""
    text = sys.stdin.read() if path == "-" else Path(path).read_text()
    return {(int(ghost["db"]), ghost["key_hex"].lower()): ghost for ghost in json.loads(text)["ghosts"]}


def said_of(line: dict[str, Any], scan: dict[Key, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the scan says about the key, or about the other half of its entry."""
    halves = [line["key_hex"], *([line["partner_key_hex"]] if "partner_key_hex" in line else [])]
    return [scan[line["db"], half] for half in halves if (line["db"], half) in scan]


def name(key: Key) -> str:
    """The key as a person reads it."""
    return f"db {key[0]} {bytes.fromhex(key[1]).decode(errors='backslashreplace')}"


def recall(lines: list[dict[str, Any]], scan: dict[Key, dict[str, Any]], label: str) -> list[dict[str, Any]]:
    """Prints a table of this label's reasons; the lines that were missed."""
    missed: list[dict[str, Any]] = []
    table: dict[str, Counter[str]] = defaultdict(Counter)
    other: dict[str, Counter[str]] = defaultdict(Counter)
    for line in (line for line in lines if line["label"] == label):
        said = [entry for entry in said_of(line, scan) if label == "soft" or entry["verdict"] == "ghost"]
        codes = {code for entry in said for code in entry["reasons"]}
        table[line["reason"]].update(planted=1, found=bool(said), by_code=line["reason"] in codes)
        if not said:
            missed.append(line)
        elif line["reason"] not in codes:
            other[line["reason"]].update(codes)
    print(f"\n{label + ' reason':20} planted  found  with that code   else called")
    for reason, row in table.items():
        called = ", ".join(f"{code} {count}" for code, count in other[reason].most_common(4))
        print(f"{reason:20} {row['planted']:7} {row['found']:6} {row['by_code']:15}   {called}")
    return missed


def show(title: str, entries: list[str], most: int) -> None:
    """Prints how many there are under this title, and the first of them."""
    print(f"\n{title}: {len(entries)}")
    for entry in entries[:most]:
        print(f"  {entry}")
    if len(entries) > most:
        print(f"  ... and {len(entries) - most} more (--all shows them)")


def main() -> int:
    """Exit 1 if a hard ghost was missed, a live key called one, or a foreign object was run; with --strict also if a soft key was called hard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path)
    parser.add_argument("scan", help="JSON output of llmdiag scan-cache, or -")
    parser.add_argument("--strict", action="store_true", help="a soft key called a hard ghost fails too")
    parser.add_argument("--canary", type=Path, default=Path("/tmp/llmdiag-corpus-canary"), help="what a foreign object creates when it is run")
    parser.add_argument("--all", action="store_true", help="show every key, not the first ten of a list")
    args = parser.parse_args()
    most = sys.maxsize if args.all else 10
    every = [json.loads(line) for line in args.truth.read_text().splitlines()]
    lines = [line for line in every if "key_hex" in line]
    scan = read_scan(args.scan)
    missed = recall(lines, scan, "ghost")
    recall(lines, scan, "soft")

    known = {(line["db"], line[part]): line for line in lines for part in ("partner_key_hex", "key_hex") if part in line}
    hard = {key: entry for key, entry in scan.items() if entry["verdict"] == "ghost"}
    accused = [f"{known[key]['reason'] if key in known else 'ordinary'}: {name(key)} {entry['reasons']} purgeable={entry.get('purgeable')}"
               for key, entry in sorted(hard.items()) if key not in known or known[key]["label"] == "live"]
    harsh = [f"{known[key]['reason']}: {name(key)} {entry['reasons']}" for key, entry in sorted(hard.items()) if key in known and known[key]["label"] == "soft"]
    suspects = Counter(known[key]["reason"] if key in known else "ordinary" for key, entry in scan.items()
                       if entry["verdict"] == "soft" and (key not in known or known[key]["label"] == "live"))
    show("hard ghosts missed", [f"{line['reason']} in {line['family']}: {name((line['db'], line['key_hex']))}" for line in missed], most)
    show("live or ordinary keys called a hard ghost", accused, most)
    show("soft keys called a hard ghost", harsh, most)
    print(f"\nlive or ordinary keys called soft: {sum(suspects.values())} {dict(suspects.most_common())}")
    live, ordinary = sum(line["label"] == "live" for line in lines), sum(line.get("count", 0) for line in every)
    print(f"out of {live} look-alikes and {ordinary} ordinary keys")
    if args.canary.exists():
        print(f"\nA FOREIGN OBJECT WAS RUN: {args.canary} exists")
    return 1 if missed or accused or args.canary.exists() or (args.strict and harsh) else 0


if __name__ == "__main__":
    sys.exit(main())
