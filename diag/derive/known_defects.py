"""Defects that the versions in the evidence are known to have, and whether their symptom is there."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from diag.signatures import defects
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("versions",)
WANTS = ("gpu_devices", "log_events")
GIVES: tuple[Table, ...] = (
    table(
        "known_defects",
        "Defects that the versions in the evidence are known to have, one row per defect and symptom; a version alone is no fault",
        "defect VARCHAR: name of it", "says VARCHAR: what it does", "symptom VARCHAR: a kind of engine_errors, or freeze (engine_freezes), admission (admission_stalls)",
        "versions VARCHAR: the components that have it, joined by comma and space", "known VARCHAR: confirmed (by a maintainer, a merged fix or a repeated reproduction) | reported",
        "url VARCHAR: where it is told", "read_on VARCHAR: day on which that was read", "do VARCHAR: what helps",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """versions (+ names of cards) -> known_defects."""
    import pandas as pd

    rows = frames["versions"].dropna(subset=["component", "version"])
    cards = _texts(frames.get("gpu_devices"), "name")
    logs = frames.get("log_events")
    arguments = _texts(None if logs is None else logs[logs["event"].isin(["startup", "engine_init"])], "message")
    found: list[dict[str, object]] = []
    for key, group in rows.groupby(KEYS, dropna=False, sort=False):
        origin = dict(zip(KEYS, (None if part != part else part for part in key), strict=True))
        versions = {str(name): str(version) for name, version in zip(group["component"], group["version"], strict=True)}
        sources = {str(name): source for name, source in zip(group["component"], group["source"], strict=True)}
        found += [{**origin, **row} for row in _rows(versions, sources, cards, arguments)]
    return {"known_defects": pd.DataFrame(found)} if found else {}


def _texts(frame: "pd.DataFrame | None", column: str) -> frozenset[str]:
    return frozenset() if frame is None else frozenset(str(text) for text in frame[column].dropna().unique())


def _rows(versions: Mapping[str, str], sources: Mapping[str, object], cards: frozenset[str], arguments: frozenset[str]) -> Iterator[dict[str, object]]:
    for defect in defects.table():
        if not defects.fits(defect, versions, cards, arguments):
            continue
        named = [need.component for need in defect.needs]
        for symptom in defect.symptoms:
            yield {
                "defect": defect.id, "says": defect.says, "symptom": symptom, "versions": ", ".join(f"{name} {versions[name]}" for name in named), "known": defect.known,
                "url": defect.url, "read_on": str(defect.read), "do": defect.do, "source": sources[named[0]],
            }  # fmt: skip
