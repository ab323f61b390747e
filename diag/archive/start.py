"""First code of the single-file archive: it unpacks a private environment, once, and becomes `llmdiag` in there.

Run by whatever Python a host has: the standard library only, and nothing that Python 3.6 cannot parse.

    llmdiag-0.1.0-py311-linux-x86_64.pyz     this module as __main__.py, build.json, NOTICE, payload.tar (by xz)
    ~/.cache/llmdiag/llmdiag-…-<key>/        mode 0700: pyvenv.cfg, bin/{python,llmdiag,py-spy}, lib/python3.11/site-packages

The environment is one as `python -m venv` makes: what starts children or looks for py-spy finds them as after any install.
"""

import hashlib
import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import IO, Any

PAYLOAD = "payload.tar"
BUILD = "build.json"
VARIABLE = "LLMDIAG_CACHE"
PARTIAL, LEFT_S = ".llmdiag-", 3600.0
"""Folder that is being unpacked, and the age at which nobody does so any more."""
OLDEST = (3, 11)
"""Python that llmdiag itself needs."""
NOT_OURS = ("PYTHONPATH", "PYTHONHOME")
"""Of an engine's container: they would put its packages before those of the archive."""


class Unusable(Exception):
    """Why not here; what to do stands on a line of its own."""


def main(archive: Path, arguments: "list[str]") -> None:
    """Become llmdiag. Where that cannot be, 2 is the exit code; of an exec probe 0, for nothing is proved."""
    try:
        with zipfile.ZipFile(str(archive)) as opened:
            build = json.loads(opened.read(BUILD).decode("utf-8"))
            _check_host(build, archive, arguments)
            place = _environment(opened, build)
    except Unusable as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(0 if "--exec-probe" in arguments else 2)
    for name in NOT_OURS:
        os.environ.pop(name, None)
    python = str(place / "bin" / "python")
    os.execv(python, [python, str(place / "bin" / "llmdiag"), *arguments])


def _check_host(build: "dict[str, Any]", archive: Path, arguments: "list[str]") -> None:
    """Raises Unusable where this host cannot run it. Another Python of the host takes over where only that one can."""
    wanted, own = _dotted(build["python"]), _dotted(sys.version_info[:2])
    machine, glibc = os.uname().machine, _glibc()
    if machine != build["machine"]:
        raise Unusable(f"this archive is for {build['machine']}, this machine is {machine}\n  build another: make dist DIST_MACHINE={machine}")
    if glibc < tuple(build["glibc"]):
        found = f"this host has {_dotted(glibc)}" if glibc else "this host has another C library"
        raise Unusable(f"this archive needs glibc {_dotted(build['glibc'])}, {found}\n  run it in a container beside the service: samples/container")
    if wanted == own and sys.implementation.name == "cpython":
        return
    other = shutil.which(f"python{wanted}")
    if other is None:
        another = f", or build another: make dist DIST_PYTHON={own}" if sys.version_info >= OLDEST else ""
        raise Unusable(f"this archive needs Python {wanted}; {sys.executable} is {own}\n  run it with that one{another}")
    os.execv(other, [other, str(archive), *arguments])


def _dotted(numbers: Any) -> str:
    return ".".join(map(str, numbers))


def _glibc() -> "tuple[int, ...]":
    """(2, 36); empty without glibc."""
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ()
    return tuple(map(int, said.split()[1].split(".")[:2])) if said.startswith("glibc ") else ()


def _environment(opened: zipfile.ZipFile, build: "dict[str, Any]") -> Path:
    """The folder for this build and this Python, unpacked where it is not there yet. Raises Unusable."""
    python = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    key = hashlib.sha256(f"{build['sha256']} {python}".encode()).hexdigest()[:16]
    refused = []
    for parent in _parents():
        place = parent / f"{build['name']}-{key}"
        try:
            if not _is_whole(place, build):
                _check_disk(parent, build["bytes"])
                _unpack(opened, build, place, python)
        except (OSError, Unusable) as error:
            refused.append(f"{parent}: {getattr(error, 'strerror', None) or error}\n")
        else:
            return place
    raise Unusable(f"there is no place to unpack to\n  {'  '.join(refused)}  set {VARIABLE} to a folder with {build['bytes'] >> 20} MiB free, not mounted noexec")


def _parents() -> "list[Path]":
    """Where to look, in this order; a place that a person named is the only one."""
    if os.environ.get(VARIABLE):
        return [Path(os.environ[VARIABLE]).absolute()]
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not home.is_absolute():
        home = Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111  (Path.home raises where there is none)
    return [home / "llmdiag"] * home.is_absolute() + [Path(tempfile.gettempdir())]


def _is_whole(place: Path, build: "dict[str, Any]") -> bool:
    """It is there, and the programs in it are those of the archive. Raises Unusable where somebody else may have put it there."""
    try:
        found = os.lstat(str(place))
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Unusable(f"{place.name} in it is not a private folder (mode 0700) of this user; remove it")
    try:
        return (place / "bin" / "python").exists() and all(_sha256((place / path).open("rb")) == digest for path, digest in build["programs"].items())
    except FileNotFoundError:
        return False


def _sha256(stream: "IO[bytes]") -> str:
    """Of what a stream holds; closes it."""
    digest = hashlib.sha256()
    with stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _check_disk(parent: Path, wanted_bytes: int) -> None:
    """Raises Unusable, OSError: no folder, no room, or nothing may be executed."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk = os.statvfs(str(parent))
    free_bytes = disk.f_bavail * disk.f_frsize
    if disk.f_flag & os.ST_NOEXEC:
        raise Unusable("mounted noexec")
    if free_bytes < wanted_bytes:
        raise Unusable(f"{free_bytes >> 20} MiB free")


def _unpack(opened: zipfile.ZipFile, build: "dict[str, Any]", place: Path, python: Path) -> None:
    """Beside the place, then moved there whole: whoever starts at the same time never sees half of it."""
    if _sha256(opened.open(PAYLOAD)) != build["sha256"]:
        raise Unusable("the archive is damaged: copy it again")
    _remove_left(place.parent)
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=str(place.parent)))  # its mode is 0700
    sys.stderr.write(f"unpacking to {place}, once\n")
    try:
        with opened.open(PAYLOAD) as stream, tarfile.open(fileobj=stream, mode="r|*") as members:
            members.extraction_filter = getattr(tarfile, "data_filter", None)  # which a Python of before 2023 has not
            members.extractall(str(partial / "new"))
        (partial / "new" / "bin" / "python").symlink_to(python)
        (partial / "new" / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
        (partial / "new").chmod(0o700)
        _put(partial, place, build)
    finally:
        shutil.rmtree(str(partial), ignore_errors=True)


def _remove_left(parent: Path) -> None:
    """What a start that was killed left half unpacked; one that still unpacks is younger."""
    for old in parent.glob(PARTIAL + "*"):
        try:
            if time.time() - old.stat().st_mtime > LEFT_S:
                shutil.rmtree(str(old), ignore_errors=True)
        except OSError:
            continue


def _put(partial: Path, place: Path, build: "dict[str, Any]") -> None:
    """`partial/new` becomes the place, unless somebody was faster; what is damaged there goes first."""
    for _ in range(2):
        try:
            (partial / "new").rename(place)  # fails where there is a folder with something in it
            return
        except OSError:
            if _is_whole(place, build):
                return
            place.rename(partial / "damaged")
    raise Unusable("others change it at the same time")


if __name__ == "__main__":
    main(Path(__file__).absolute().parent, sys.argv[1:])
