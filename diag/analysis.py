"""Paths -> diagnoses: load the evidence of each capture, run the rules, say who was looked at. Pure but for reading."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diag import __version__, engine, evidence
from diag.collectors import Collector
from diag.evidence import Evidence, Extras
from diag.model import Diagnosis
from diag.redact import Redactor
from diag.report import assumed, sections
from diag.report.masked import masked
from diag.rules import Rule
from diag.sources import Dates, Source, sources_of


def analyse(
    paths: Sequence[Path], rules: Sequence[Rule], extras: Extras | None = None, dates: Dates | None = None, *, pictures: bool = True
) -> list[Diagnosis]:
    """One Diagnosis per capture, in order of time. Bundles of different hosts are one incident and judged together.

    Without `pictures` sections that are made of plots alone are left out. Bundles were redacted when they were taken; what is told of loose files is redacted here.
    """
    extras = extras or Extras()
    collectors = evidence.collectors_of(extras)
    found = sources_of(list(paths), collectors, dates)
    redactor = Redactor()
    told = [(group, _one(group, rules, collectors, extras, paths, pictures=pictures)) for group in captures(found)]
    return [masked(diagnosis, redactor) if any(source.manifest is None for source in group) else diagnosis for group, diagnosis in told]


def captures(sources: Sequence[Source]) -> list[list[Source]]:
    """Sources -> groups that are judged together: a further bundle of the same target opens a new capture."""
    groups: list[list[Source]] = [[]]
    seen: dict[tuple[object, ...], int] = {}
    for source in sorted(sources, key=lambda item: item.capture if item.manifest is not None else ""):
        if source.manifest is None:
            groups[0].append(source)
            continue
        target = (source.host, source.manifest.target.get("root_pid"))
        number = seen.get(target, 0)
        seen[target] = number + 1
        while len(groups) <= number:
            groups.append([])
        groups[number].append(source)
    return [group for group in groups if group]


def best(diagnoses: Sequence[Diagnosis]) -> Diagnosis:
    """The capture that says most: matched before inconclusive before clear, the later one on a tie."""
    order = {"matched": 0, "inconclusive": 1, "clear": 2}
    return min(reversed(list(diagnoses)), key=lambda item: order[item.verdict])


def subject_of(loaded: Evidence, rules: Sequence[Rule], paths: Sequence[Path]) -> dict[str, object]:
    """Who was looked at, for the head of a report."""
    manifests = [source.manifest for source in loaded.sources if source.manifest is not None]
    roles = loaded.connection.cursor().execute(
        "SELECT role, count(DISTINCT pid) FROM process_roles GROUP BY role ORDER BY min(pid)"
    ).fetchall()
    hosts = sorted({source.host for source in loaded.sources} - {"unknown"})
    return {
        "tool_version": __version__,
        "bundle": ", ".join(source.name for source in loaded.sources),
        "path": shlex.join(map(str, paths)),
        "hosts": ", ".join(hosts) or None,
        "pid": manifests[0].target.get("pid") if manifests else None,
        "tree": ", ".join(f"{count} {role}" if count > 1 else str(role) for role, count in roles) or None,
        "taken_at": manifests[0].started_at if manifests else None,
        "rules": len(rules),
        "redacted": sum(sum(m.redacted.values()) for m in manifests) if manifests else None,
        "redaction": all(m.redaction for m in manifests),
        "dropped": [name for m in manifests for name in m.dropped],
        "unrecognised": [name for source in loaded.sources for name in source.unknown],
        "handed_in": sum(source.files for source in loaded.sources),
        "interrupted": any(m.finished_at is None for m in manifests),
        **assumed.subject(loaded),
    }


def _one(group: Sequence[Source], rules: Sequence[Rule], collectors: Sequence[Collector], extras: Extras, paths: Sequence[Path], *, pictures: bool) -> Diagnosis:
    loaded = evidence.load(group, collectors, extras)
    subject = subject_of(loaded, rules, paths)
    pid = subject["pid"]
    context: engine.Context = {"bundle": str(paths[0]), "evidence": tuple(map(str, paths)), **({} if pid is None else {"pid": str(pid)})}
    found = engine.diagnose(loaded, rules, context, subject)
    return replace(found, sections=tuple(section for section in sections.of(loaded, pictures=pictures) if not (section.unexplained and found.findings)))


def is_own(folder: Path, shipped: Path) -> bool:
    """Are these the rules that came with llmdiag (and need no jail)?"""
    return os.path.realpath(folder) == os.path.realpath(shipped)

