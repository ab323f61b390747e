"""The machine around the service: versions, memory, CPU and cgroup limits, and what the kernel log says of it.

Versions are read from the folder names of the target's own site-packages, nothing is imported. `facts.jsonl` has one
line a file, before and after the window; `versions.jsonl` one line a process; `dmesg.txt` only the lines that matter:

    {"artefact":"host","read":0,"ts":1796007298.3}
    {"read":0,"ts":1796007298.3,"file":"memory.max","level":0,"raw":"max"}
    {"pid":30,"python":"3.11.2","site":["/opt/venv/lib/python3.11/site-packages"],"dists":["torch-2.13.0+cu130", …],"libraries":[…]}
    2026-11-30T06:03:16,292389+00:00 Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB, …

Saved `dmesg` output is read too (plain, -T, or --time-format iso). The plain one counts from the boot, whose time is taken
from saved output of `uptime -s` or `who -b`, /proc/stat, or a journal with both clocks. So are lists of packages (pip freeze).
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from diag import procfs
from diag.bundle import Door
from diag.errors import Absent, CollectorError, Denied, Garbled, Vanished
from diag.instruments import beside
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import boot_time, cgroups, dist_info, host_files, kernel_log, package_lists
from diag.tables import Table

NAME = "host"
FEEDS = ("versions", "host_facts", "host_events")
NEEDS: tuple[str, ...] = ()
BESIDE = ("events",)
"""Journals that tell when the machine was booted."""
TABLES: tuple[Table, ...] = ()
BUDGET_S = 4.0
BUDGET_BYTES = 8 << 20
HINT = "llmdiag snapshot {pid}"

HEAD_BYTES = 64 << 10
FACTS, VERSIONS, DMESG = "facts.jsonl", "versions.jsonl", "dmesg.txt"
KMSG = Path("/dev/kmsg")
FILES = {
    "meminfo": "/proc/meminfo", "loadavg": "/proc/loadavg", "vmstat": "/proc/vmstat", "kernel": "/proc/sys/kernel/osrelease",
    "uptime_s": "/proc/uptime", "cpus": "/sys/devices/system/cpu/online",
    "pressure.cpu": "/proc/pressure/cpu", "pressure.memory": "/proc/pressure/memory", "pressure.io": "/proc/pressure/io",
}
SITE = re.compile(r"^(?P<site>/.*?/(?:site|dist)-packages)/")
LIBPYTHON = re.compile(r"python(?P<version>3\.\d+)")
MAPS_BYTES = 4 << 20
MAX_DISTS = 5000
REMEDY = "run llmdiag as root, or save `sudo dmesg -T > dmesg.txt` and give it to analyze"


def collect(patient: Patient, door: Door) -> Collecting:
    """Limits and counters before and after the window; versions before it; the kernel log beside it."""
    tool = _start_dmesg()
    try:
        lines: list[object] = [{"artefact": "host", "read": 0, "ts": time.time()}]
        lines += _facts(patient.target_pid, 0, door)
        door.jsonl(VERSIONS, _versions(patient, door))
        while True:
            tick = yield
            if tool is not None:
                beside.drain(tool)
            if tick.last:
                break
        lines += _facts(patient.target_pid, 1, door)
        door.jsonl(FACTS, lines)
        _kernel_log(tool, door)
    finally:
        if tool is not None:
            beside.stop(tool)


def recognise(name: str, head: bytes) -> bool:
    """Files of this collector, or saved output of dmesg."""
    if head.startswith((b'{"artefact":"host"', b'{"artefact":"versions"')):
        return True
    text = head.rpartition(b"\n")[0].decode("utf-8", "replace") or head.decode("utf-8", "replace")
    return kernel_log.looks_like_dmesg(text) or boot_time.recognise(text) or package_lists.recognise(text)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Raises Garbled for a damaged JSON line (names it)."""
    for artefact in (artefact for artefact in artefacts if artefact.collector == NAME):
        with artefact.opener() as stream:
            head = stream.read(HEAD_BYTES)
        if head.startswith(b'{"artefact":"host"'):
            yield from host_files.rows(artefact)
        elif head.startswith(b'{"artefact":"versions"'):
            yield from dist_info.rows(artefact)
        elif not head and artefact.name != DMESG:
            raise Garbled(f"{artefact.path} is empty", hint="collect again")
        elif not head or kernel_log.looks_like_dmesg(text := head.decode("utf-8", "replace")):
            boot = _boot(artefact, artefacts) if kernel_log.counts_from_boot(artefact.lines()) else None
            yield from kernel_log.rows(artefact.lines(), artefact.at, boot)
        elif package_lists.recognise(text):
            yield from package_lists.rows(artefact)
        elif not boot_time.recognise(text):  # a boot is read for the kernel log beside it
            raise Garbled(f"{artefact.path} is neither of the host collector nor output of dmesg", hint="collect again, or leave the file out")


def _boot(log: Artefact, artefacts: Sequence[Artefact]) -> boot_time.Boot | None:
    """Of several machines, whose files lie in folders of their own, that one whose kernel wrote this log."""
    folder = log.path.rpartition("/")[0]
    beside = [artefact for artefact in artefacts if artefact.path.rpartition("/")[0] == folder]
    return boot_time.booted_at(beside) or boot_time.booted_at(artefacts)


# --- kernel log ---


def _start_dmesg() -> beside.Tool | None:
    try:
        return beside.start(("dmesg", "--time-format", "iso"), BUDGET_S, 16 << 20)
    except (Absent, Denied):
        return None


def _kernel_log(tool: beside.Tool | None, door: Door) -> None:
    """Lines worth keeping -> dmesg.txt; a machine without a kernel log has none to read."""
    if tool is not None:
        try:
            output = beside.gather(tool)
        except CollectorError as error:
            door.note("host_events", "partial", f"{error.message}; {REMEDY}")
            return
        if output.code == 0:
            _keep(output.out.splitlines(), door)
            return
        if not re.search(r"unrecognized option|invalid option|unknown option", output.err):
            door.note("host_events", "partial", f"{output.complaint}; {REMEDY}")
            return
    if KMSG.exists():
        _read_kmsg(door)


def _read_kmsg(door: Door) -> None:
    """Without dmesg: the records of /dev/kmsg, without waiting for new ones."""
    boot = time.time() - time.monotonic()
    try:
        descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        door.note("host_events", "partial", f"{KMSG}: {error.strerror}; {REMEDY}")
        return
    lines = []
    try:
        while record := os.read(descriptor, 1 << 14):
            line = kernel_log.of_kmsg(record.decode("utf-8", "replace"), boot)
            if line is not None:
                lines.append(line)
    except BlockingIOError:
        pass
    except OSError as error:
        # EPIPE: records were overwritten while we read; the next read would go on.
        door.note("host_events", "partial", f"{KMSG}: {error.strerror}; {REMEDY}")
    finally:
        os.close(descriptor)
    _keep(lines, door)


def _keep(lines: Sequence[str], door: Door) -> None:
    door.text(DMESG, "".join(f"{line}\n" for line in lines if kernel_log.is_worth_keeping(line)))


# --- facts ---


def _facts(pid: int, read: int, door: Door) -> Iterator[object]:
    ts = time.time()
    for name, path in {**FILES, "cpus_allowed": f"/proc/{pid}/status"}.items():
        with contextlib.suppress(CollectorError, OSError):
            text = procfs.read(path).decode("utf-8", "replace")
            if name == "cpus_allowed":
                text = procfs.parse_status(text).get("Cpus_allowed_list", "")
            yield {"read": read, "ts": ts, "file": name, "raw": text}
    with contextlib.suppress(OSError):
        shm = os.statvfs(f"/proc/{pid}/root/dev/shm")
        yield {"read": read, "ts": ts, "file": "shm", "raw": f"{shm.f_blocks * shm.f_frsize} {shm.f_bavail * shm.f_frsize}"}
    for file, level, text in _cgroup(pid, door):
        yield {"read": read, "ts": ts, "file": file, "level": level, "raw": text}


def _cgroup(pid: int, door: Door) -> Iterator[tuple[str, int, str]]:
    """(file, level above the target's own group, text) of its limits and events."""
    try:
        groups = cgroups.places(procfs.read(f"/proc/{pid}/cgroup").decode(), procfs.read("/proc/self/mountinfo").decode())
    except Vanished:
        return
    except (Denied, UnicodeDecodeError) as error:
        door.note("host_facts", "partial", f"cgroup of pid {pid}: {error}")
        return
    version, path = 2, "/"
    for controller, group in groups.items():
        own, limits = cgroups.CONTROLLERS[controller]
        if controller == "memory":
            version, path = (1 if group.is_v1 else 2), group.path
        place = group.mount / group.path.lstrip("/")
        if ".." in group.path.split("/") or not place.is_dir():
            door.note("host_facts", "partial", f"the cgroup of pid {pid} is not visible from here; run llmdiag on the host")
            continue
        parents = (folder for folder in (place, *place.parents) if folder == group.mount or group.mount in folder.parents)
        for level, folder in enumerate(parents):
            for file in (*own, *limits) if level == 0 else limits:
                with contextlib.suppress(CollectorError, OSError):
                    yield file, level, procfs.read(str(folder / file)).decode("utf-8", "replace")
    if groups:
        yield "cgroup_version", 0, str(version)
        yield "cgroup_path", 0, path


# --- versions ---


def _versions(patient: Patient, door: Door) -> Iterator[object]:
    """One line a process that has packages of its own, and one for kernel and driver."""
    yield {"artefact": "versions", "ts": time.time()}
    seen: set[tuple[str, ...]] = set()
    for pid in patient.pids:
        try:
            record = _packages(pid)
        except Vanished:
            continue
        except Denied as error:
            door.note("versions", "partial", f"packages of pid {pid}: {error.message}; run llmdiag as its user or as root")
            continue
        key = (str(record.python), *record.site, *record.libraries)
        if (record.python is not None or record.libraries) and key not in seen:
            seen.add(key)
            yield msgspec.to_builtins(record)
    driver: dict[str, str] = {"kernel": os.uname().release}
    for name, path in (("nvidia", "/proc/driver/nvidia/version"), ("amdgpu", "/sys/module/amdgpu/version")):
        with contextlib.suppress(CollectorError):
            driver[name] = procfs.read(path).decode("utf-8", "replace").splitlines()[0]
    yield driver


def _packages(pid: int) -> dist_info.Packages:
    """Site-packages of a process, and the names in them. Raises Vanished or Denied."""
    root = _root(pid)
    maps = procfs.read(f"/proc/{pid}/maps", MAPS_BYTES).decode("utf-8", "replace")
    mapped = dict.fromkeys(line[line.index("/"):] for line in maps.splitlines() if "/" in line)
    is_python = procfs.PYTHON.match(_program(pid)) or any("libpython" in path or SITE.match(path) for path in mapped)
    sites = [site for site in _sites(pid, root, list(mapped)) if (root / site.lstrip("/")).is_dir()] if is_python else []
    dists: dict[str, None] = {}
    for site in sites:
        with contextlib.suppress(FileNotFoundError):
            found = sorted(entry.name for entry in os.scandir(root / site.lstrip("/")))
            dists |= dict.fromkeys(name.removesuffix(".dist-info") for name in found if name.endswith((".dist-info", ".egg-info")))
    names = {path.rpartition("/")[2] for path in mapped}
    libraries = sorted(name for name in names if dist_info.LIBRARY.match(name))
    python = _python(pid, root, sites, list(mapped)) if is_python else None
    return dist_info.Packages(pid, python, sites, list(dists)[:MAX_DISTS], libraries)


def _program(pid: int) -> str:
    return procfs.exe(pid).removesuffix(" (deleted)").rpartition("/")[2]


def _root(pid: int) -> Path:
    """Where the file system of the process begins: `/` when it is ours, so that absolute links work."""
    theirs = Path(f"/proc/{pid}/root")
    try:
        return Path("/") if theirs.samefile("/") else theirs
    except FileNotFoundError as error:
        raise Vanished(f"pid {pid} went away while it was read") from error
    except PermissionError as error:
        raise Denied(f"/proc/{pid}/root: {error.strerror}") from error


def _sites(pid: int, root: Path, mapped: Sequence[str]) -> list[str]:
    """Candidates in the order Python would look: virtual environment, mapped files, the interpreter's own."""
    prefixes: dict[str, None] = {}
    with contextlib.suppress(CollectorError):
        environ = procfs.environ(pid)
        words = [word for word in procfs.argv(pid)[:3] if word.startswith("/")]
        own = [environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name, "").startswith("/")]
        prefixes |= dict.fromkeys([*(str(Path(word).parent.parent) for word in words if "/bin/" in word), *own])
    found = dict.fromkeys(site for prefix in prefixes for site in _below(root, prefix))
    found |= dict.fromkeys(match["site"] for path in mapped if (match := SITE.match(path)))
    if found and _closed(root, next(iter(found))):
        return list(found)
    with contextlib.suppress(CollectorError):
        found |= dict.fromkeys(_below(root, str(Path(procfs.exe(pid).removesuffix(" (deleted)")).parent.parent)))
    return list(found)


def _closed(root: Path, site: str) -> bool:
    """A virtual environment that does not see the packages of the Python it was made from."""
    try:
        text = (root / site.lstrip("/")).parents[2].joinpath("pyvenv.cfg").read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(r"^include-system-site-packages *= *false", text, re.M | re.I) is not None


def _below(root: Path, prefix: str) -> Iterator[str]:
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages"):
        for place in sorted((root / prefix.lstrip("/")).glob(pattern)):
            yield "/" + str(place.relative_to(root))


def _python(pid: int, root: Path, sites: Sequence[str], mapped: Sequence[str]) -> str | None:
    """`3.11.2` where a virtual environment says so, else `3.11`; None = no Python."""
    for site in sites:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = (root / site.lstrip("/")).parents[2].joinpath("pyvenv.cfg").read_text()
            if match := re.search(r"^version(?:_info)? *= *(\d+\.\d+\.\d+)", text, re.M):
                return match[1]
    for path in (procfs.exe(pid), *mapped, *sites):
        if match := LIBPYTHON.search(path):
            return match["version"]
    return None
