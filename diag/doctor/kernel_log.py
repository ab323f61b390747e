"""The kernel log, where out-of-memory kills and device errors (Xid) are, and the journal. Both are really read."""

import os
from collections.abc import Iterator

from diag import procfs
from diag.collectors.host import KMSG
from diag.doctor.ground import Check, Ground, has
from diag.errors import Absent, CollectorError
from diag.instruments import beside

ORDER = 60
PATIENCE_S = 4.0
ONE_LINE = 1 << 16
RESTRICT = "/proc/sys/kernel/dmesg_restrict"
EMPTY = "no journal files"
FIX = "sudo dmesg -T > dmesg.txt; llmdiag analyze BUNDLE dmesg.txt"


def check(ground: Ground) -> Iterator[Check]:
    """The log of the kernel, then the journal."""
    where = f"dmesg_restrict {_restrict()}, {'has' if has('CAP_SYSLOG') else 'without'} CAP_SYSLOG"
    ways = {"dmesg": _dmesg(), str(KMSG): _kmsg()}
    working = [name for name, problem in ways.items() if problem is None]
    if working:
        yield Check("kernel log", True, f"read by {' and '.join(working)} ({where}): kills, Xid")
    else:
        why = "; ".join(f"{name}: {problem}" for name, problem in ways.items())
        yield Check("kernel log", False, f"{why} ({where}): kills and device errors stay unknown", FIX)
    yield _journal()


def _restrict() -> str:
    try:
        return procfs.read(RESTRICT).decode().strip()
    except CollectorError:
        return "unknown"


def _dmesg() -> str | None:
    """None: it works."""
    try:
        output = beside.gather(beside.start(("dmesg", "--time-format", "iso"), PATIENCE_S, ONE_LINE))
    except CollectorError as error:
        return error.message
    return None if output.code == 0 else output.complaint


def _kmsg() -> str | None:
    """None: it can be opened, and a record read."""
    try:
        descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return error.strerror or "cannot be opened"
    try:
        os.read(descriptor, 1 << 14)
    except (BlockingIOError, BrokenPipeError):
        return None  # empty, or records were overwritten meanwhile
    except OSError as error:
        return error.strerror or "cannot be read"
    finally:
        os.close(descriptor)
    return None


def _journal() -> Check:
    tells = "logs of services that write to no file, and who restarted them"
    try:
        output = beside.gather(beside.start(("journalctl", "--no-pager", "-n", "1", "-o", "short-iso"), PATIENCE_S, ONE_LINE))
    except Absent:
        return Check("journal", None, "no journalctl here: on the host it is read, or saved for analyze", "journalctl -u UNIT -o json --since -2h > journal.json")
    except CollectorError as error:
        return Check("journal", False, f"{error.message}: {tells} stay unknown", "sudo systemctl restart systemd-journald")
    text = f"{output.out}\n{output.err}".lower()
    if EMPTY in text or (output.code == 0 and "no entries" in text):
        return Check("journal", None, "there is no journal on this machine")
    if output.code != 0 or "not seeing messages" in text or "permission" in text:
        return Check("journal", False, f"only in part: {output.complaint}", 'sudo usermod -aG systemd-journal "$USER"')
    return Check("journal", True, f"journalctl reads it: {tells}")
