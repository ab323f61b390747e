"""Make the single-file archive, in a checkout: `python -m diag.archive.build [--python 3.12] [--machine aarch64]`, or `make dist`.

pip fetches the wheels of the Python and the machine that are asked for, which need not be those of this host; nothing is compiled.
Neither shiv nor pex: what shiv unpacks may be replaced by whoever shares its cache, its children find their packages through a
PYTHONPATH that foreign tools inherit, and a home that cannot be written ends it; pex answers the last two, and nobody the first.
"""

import argparse
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipapp
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from diag import __version__
from diag.archive import start
from diag.archive.notice import notice

GLIBC = 28
"""Wheels for glibc 2.28 and older: RHEL 8, Debian 10, Ubuntu 20.04."""
LEGACY = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
UNUSED = ("**/__pycache__", "numpy/**/tests", "pandas/tests", "numpy/_core/include", "numpy/_core/lib", "**/*.pyi", "**/*.pyx", "**/*.pxd", "*/direct_url.json", "bin")
"""Never imported; half of what pandas weighs are its tests. Below site-packages, where llmdiag itself stays whole."""
PROGRAMS = ("bin/py-spy",)
LAUNCHER = "import sys\nfrom diag.cli import main\nsys.argv[0] = 'llmdiag'\nsys.exit(main())\n"
LEVEL = 6
MADE_AT = 315_619_200
"""1980-01-02: the same input is the same archive. A zip knows no earlier year, in any zone."""


def main() -> int:
    asked = argparse.ArgumentParser(prog="make dist", description="Make llmdiag-VERSION-PLATFORM.pyz, with a NOTICE inside and a sha256 beside it.")
    asked.add_argument("--python", default="{}.{}".format(*sys.version_info[:2]), help="version of the Python that will run it: 3.12")
    asked.add_argument("--machine", default=os.uname().machine, choices=["x86_64", "aarch64"])
    asked.add_argument("--output", type=Path, default=Path("dist"), help="folder")
    asked.add_argument("--level", type=int, default=LEVEL, help="of compression: 0 none at all to 9")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmdiag-dist-") as scratch:
        made = build(Path(scratch), options.output, options.python, options.machine, options.level)
    sys.stdout.write(f"{made}: {made.stat().st_size / 1e6:.1f} MB\n")
    return 0


def build(scratch: Path, output: Path, python: str, machine: str, level: int = LEVEL) -> Path:
    """The archive in `output`, a .sha256 beside it. Raises CalledProcessError where pip or hatchling fail; they say why."""
    root = scratch / "root"
    site = root / "lib" / f"python{python}" / "site-packages"
    _install([str(_wheel(scratch))], site, python, machine)
    while lacking := missing(site, python, machine):
        _install(["--no-deps", *lacking], site, python, machine)
    (root / "bin").mkdir()
    for program in PROGRAMS:
        (site / program).rename(root / program)
    text, glibc = notice(site), glibc_of(site)
    _drop_unused(site)
    name = f"llmdiag-{__version__}-py{python.replace('.', '')}-linux-{machine}"
    return seal(root, output, {"name": name, "python": [int(part) for part in python.split(".")], "machine": machine, "glibc": glibc}, text, level)


def seal(root: Path, output: Path, facts: dict[str, object], text: str, level: int = LEVEL) -> Path:
    """An environment without its Python -> the archive. `facts`: name, python, machine, glibc; `text` is the NOTICE."""
    (root / "bin" / "llmdiag").write_text(LAUNCHER, encoding="utf-8")
    (root / "NOTICE").write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="llmdiag-seal-") as scratch:
        folder = Path(scratch)
        size = _pack(root, folder / start.PAYLOAD, level)
        known = {"bytes": size, "sha256": _sha256(folder / start.PAYLOAD), "programs": {path: _sha256(root / path) for path in PROGRAMS}}
        (folder / start.BUILD).write_text(json.dumps(facts | known) + "\n", encoding="utf-8")
        shutil.copyfile(root / "NOTICE", folder / "NOTICE")
        shutil.copyfile(start.__file__, folder / "__main__.py")
        for path in folder.iterdir():
            os.utime(path, (MADE_AT, MADE_AT))
        output.mkdir(parents=True, exist_ok=True)
        made = output / f"{facts['name']}.pyz"
        zipapp.create_archive(folder, made, interpreter="/usr/bin/env python3")
    made.chmod(0o755)
    made.with_suffix(".pyz.sha256").write_text(f"{_sha256(made)}  {made.name}\n", encoding="utf-8")
    return made


def _wheel(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


def missing(site: Path, python: str, machine: str) -> list[str]:
    """What some patch release of that Python needs besides: pip asks the conditions of packages of the Python that runs it."""
    found = list(distributions(path=[str(site)]))
    hosts = [{"python_version": python, "python_full_version": f"{python}.{patch}", "platform_machine": machine, "extra": ""} for patch in (0, 99)]
    wanted = [requirement for item in found for requirement in map(Requirement, item.requires or ()) if _holds(requirement, hosts)]
    there = {canonicalize_name(item.name) for item in found}
    return sorted({f"{requirement.name}{requirement.specifier}" for requirement in wanted if canonicalize_name(requirement.name) not in there})


def _holds(requirement: Requirement, hosts: Sequence[dict[str, str]]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate(dict(host)) for host in hosts)


def _install(wanted: Sequence[str], site: Path, python: str, machine: str) -> None:
    tags = [tag for minor in range(GLIBC, 4, -1) for tag in (f"manylinux_2_{minor}", *filter(None, [LEGACY.get(minor)]))]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{machine}")]
    subprocess.run(
        [sys.executable, "-m", "pip", "-qq", "install", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:", "--target", str(site),
         "--implementation", "cp", "--python-version", python, *platforms, *wanted], check=True,
    )  # fmt: skip


def _drop_unused(site: Path) -> None:
    for found in sorted(path for pattern in UNUSED for path in site.glob(pattern) if path.relative_to(site).parts[0] != "diag"):
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)


def _pack(root: Path, payload: Path, level: int) -> int:
    """All of it into the tar; how many bytes it is unpacked."""
    size = 0
    with lzma.open(payload, "wb", preset=level) if level else payload.open("wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            inside = path.relative_to(root).as_posix()
            member = archive.gettarinfo(path, inside)
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if inside.startswith("bin/") else 0o644
            size += member.size
            with path.open("rb") as stream:
                archive.addfile(member, stream)
    return size


def glibc_of(site: Path) -> list[int]:
    """The oldest glibc that all wheels of a folder run with, as their tags say."""
    newest = 0
    for path in site.glob("*.dist-info/WHEEL"):
        tags = re.findall(r"^Tag: .*-(manylinux\S+)$", path.read_text(encoding="utf-8"), re.M)
        newest = max([newest, *([min(minor for tag in tags for minor in map(_minor, tag.split(".")))] if tags else [])])
    return [2, newest]


def _minor(tag: str) -> int:
    """manylinux_2_27_x86_64 and manylinux2014_x86_64 -> the N of glibc 2.N"""
    numbered = re.match(r"manylinux_2_(\d+)_", tag)
    return int(numbered[1]) if numbered else next(minor for minor, name in LEGACY.items() if tag.startswith(f"{name}_"))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
