"""Plain dmesg on the wall clock, by whatever beside it tells when the machine was booted."""

import datetime

import pytest

from diag.collectors import host
from diag.model import Artefact
from diag.parsers import boot_time

DMESG = "[    0.000000] Linux version 6.1.0-38-amd64\n[ 1234.500000] NVRM: Xid (PCI:0000:3b:00): 79, pid=71, GPU has fallen off the bus.\n"
BOOT = datetime.datetime(2026, 11, 29, 21, 13, 5)
FAULT = BOOT + datetime.timedelta(seconds=1234.5)
EPOCH = int(BOOT.replace(tzinfo=datetime.UTC).timestamp())
UPTIME = "2026-11-29 21:13:05\n"


def looked(**files: str) -> tuple[list[object], str | None]:
    """Times of the kernel's events, and what was said of them. Names of journals end in `_journal`, a folder stands before `__`."""
    artefacts = []
    for key, text in files.items():
        name, owner = key.replace("__", "/"), "events" if key.endswith("_journal") else host.NAME
        assert owner == "events" or host.recognise(name, text.encode()), name
        artefacts.append(Artefact.of_bytes(name, owner, text.encode()))
    rows = list(host.parse(artefacts))
    said = [str(row["reason"]) for table, row in rows if table == "collected" and row.get("reason") is not None]
    return [row["ts"] for table, row in rows if table == "host_events"], "; ".join(said) or None


@pytest.mark.parametrize("beside", [
    {"uptime": UPTIME}, {"uptime": f"$ uptime -s\n{UPTIME}"}, {"stat": f"cpu  1 2 3\ncpu0 1 2 3\nintr 5\nbtime {EPOCH}\n"},
    {"kern_journal": "Nov 29 21:33:20 gpu-12 kernel: [ 1215.000000] nvidia-nvswitch0: open\n"},
    {"a_journal": f'{{"__REALTIME_TIMESTAMP":"{EPOCH + 60}000000","__MONOTONIC_TIMESTAMP":"60000000","MESSAGE":"x"}}\n'},
])
def test_the_boot_dates_what_counts_from_it(beside: dict[str, str]) -> None:
    (ts,), _ = looked(dmesg=DMESG, **beside)
    assert ts == FAULT


def test_the_kernel_itself_says_when_it_set_its_clock() -> None:
    (ts,), said = looked(dmesg=DMESG + f"[    2.000000] rtc_cmos 00:01: setting system clock to 2026-11-29T21:13:07 UTC ({EPOCH + 2})\n")
    assert (ts, said) == (FAULT, None)


def test_who_tells_minutes() -> None:
    (ts,), _ = looked(dmesg=DMESG, who="         system boot  2026-11-29 21:13\n")
    assert ts == FAULT - datetime.timedelta(seconds=5)


def test_a_local_time_is_said_to_be_taken_for_utc() -> None:
    assert looked(dmesg=DMESG, uptime=UPTIME)[1] == "the boot is told in local time without a zone: UTC was assumed"
    assert looked(dmesg=DMESG, stat=f"cpu  1 2 3\nbtime {EPOCH}\n")[1] is None


@pytest.mark.parametrize("beside", [{}, {"a__uptime": UPTIME, "b__uptime": "2026-11-28 21:13:05\n"}])
def test_nothing_or_a_contradiction_leaves_it_without_a_time_and_says_so(beside: dict[str, str]) -> None:
    (ts,), said = looked(dmesg=DMESG, **beside)
    assert ts is None
    assert said is not None
    assert "`uptime -s`" in said


def test_each_machine_has_its_own_boot_in_its_own_folder() -> None:
    times, _ = looked(a__dmesg=DMESG, a__uptime=UPTIME, b__dmesg=DMESG, b__uptime="2026-11-28 21:13:05\n")
    assert times == [FAULT, FAULT - datetime.timedelta(days=1)]


def test_a_boot_alone_is_no_kernel_log() -> None:
    assert list(host.parse([Artefact.of_bytes("uptime.txt", host.NAME, UPTIME.encode())])) == []


@pytest.mark.parametrize("text", ["", "2026-11-29\n", "2026-11-29 21:13:05 something happened\n", " 02:41:10 up 3 days\n", "btime 12\n", "system boot\n"])
def test_what_tells_no_boot(text: str) -> None:
    assert not boot_time.recognise(text)
