"""NOTICE: whose work an archive holds, by which licence, and the texts of these licences, from the metadata of what was installed."""

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

TEXT = re.compile(r"^(licen[cs]e|copying|notice|authors)", re.IGNORECASE)
HEAD = "This archive holds llmdiag and the packages below, each under its own licence.\n"


def notice(site: Path) -> str:
    """All packages of a folder as Markdown-free text: a list, then one section each."""
    found = sorted(importlib.metadata.distributions(path=[str(site)]), key=lambda item: item.name.lower())
    index = "".join(f"  {item.name} {item.version}: {licence(item)}\n" for item in found)
    return "\n".join([HEAD, index, *(_section(item) for item in found)])


def licence(item: importlib.metadata.Distribution) -> str:
    """Expression, field or classifier of the metadata; a field that holds a whole text by its first line."""
    classifiers = [text.rpartition(" :: ")[2] for text in item.metadata.get_all("Classifier") or [] if text.startswith("License :: ")]
    field = _field(item, "License").strip().partition("\n")[0]
    return _field(item, "License-Expression") or field or ", ".join(classifiers) or "see its texts"


def _field(item: importlib.metadata.Distribution, name: str) -> str:
    return str((item.metadata.get_all(name) or [""])[0])


def _section(item: importlib.metadata.Distribution) -> str:
    home = _field(item, "Home-page") or next(iter(item.metadata.get_all("Project-URL") or []), "").rpartition(", ")[2]
    head = f"{'=' * 79}\n{item.name} {item.version} ({licence(item)})\n{home}\n"
    return "\n".join([head, *texts(item)])


def texts(item: importlib.metadata.Distribution) -> Iterator[str]:
    """Licence texts that came with a package."""
    for file in item.files or []:
        path = Path(str(item.locate_file(file)))
        if TEXT.match(file.name) and file.suffix not in (".py", ".pyc", ".pyi") and path.is_file():
            yield f"--- {file.as_posix()}\n\n{path.read_text(encoding='utf-8', errors='replace').strip()}\n"
