"""Where llmdiag writes goes away: streams closed, full or gone, a folder that was deleted, Ctrl-C. Never a traceback, never a wrong exit code."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from diag.labs import wait_until
from tests.conftest import SAMPLES
from tests.live.run import Said, llmdiag

INCIDENT = str(SAMPLES / "ghost-key-retry-loop" / "incident.zip")
LLMDIAG = shlex.join([sys.executable, "-m", "diag.cli"])
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c"
WAIT_S = 30.0


def shell(script: str, cwd: Path | None = None) -> Said:
    """A line of shell; `$L` is llmdiag."""
    done = subprocess.run(["bash", "-c", script.replace("$L", LLMDIAG)], capture_output=True, text=True, timeout=120, check=False, cwd=cwd)
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("args", "code"), [
    (f"analyze {INCIDENT} >&-", 1), (f"analyze {INCIDENT} -f json <&- >&- 2>&-", 1), ("schema >&-", 0), ("rules show cpu-spin >&-", 0),
    ("--help >&-", 0), ("snapshot 99999999 2>&-", 2), ("analyze 2>&-", 2),
])
def test_closed_streams_are_no_news(args: str, code: int) -> None:
    assert shell(f"$L {args}").code == code


@pytest.mark.parametrize("args", [f"analyze {INCIDENT}", f"analyze {INCIDENT} -f json", "schema", "rules show cpu-spin", "--help"])
def test_a_full_stdout_is_an_error(args: str) -> None:
    said = shell(f"$L {args} >/dev/full")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: cannot write the output: No space left on device")


def test_a_full_stderr_changes_nothing() -> None:
    assert shell("$L snapshot 99999999 2>/dev/full").code == 2
    assert shell("$L analyze --no-such-option 2>/dev/full").code == 2
    assert shell("$L rules show cpu-spin >/dev/full 2>/dev/full").code == 2


def test_a_reader_that_goes_away_is_left_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*shlex.split(LLMDIAG), "schema"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (2, "")


def test_sigpipe_is_ignored_so_that_a_lost_connection_is_an_error() -> None:
    """With the default of SIGPIPE, a server that closes a connection would end llmdiag without a word."""
    tool = subprocess.Popen([sys.executable, "-m", "diag.cli", "query", INCIDENT, ENDLESS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: children(tool.pid), WAIT_S)
        ignored = int(next(line.split()[1] for line in Path(f"/proc/{tool.pid}/status").read_text().splitlines() if line.startswith("SigIgn")), 16)
        assert ignored >> (signal.SIGPIPE - 1) & 1, hex(ignored)
    finally:
        tool.kill()
        tool.wait()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("args", ["analyze .", f"analyze {INCIDENT}", "rules test", f"query {INCIDENT} 'SELECT 1'", "demo ghost-key"])
def test_a_folder_that_was_deleted_is_said(tmp_path: Path, args: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    said = shell(f"cd {shlex.quote(str(gone))} && rmdir {shlex.quote(str(gone))} && $L {args}")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: the current folder was deleted")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A read-only mount; needs the right to mount."""
    place = tmp_path / "ro"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "none", str(place)], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_report_on_a_read_only_mount(read_only: Path) -> None:
    said = llmdiag("report", INCIDENT, "-o", str(read_only / "r.txt"))
    assert said.code == 2
    assert "r.txt: Read-only file system" in said.err


@pytest.mark.parametrize(("output", "says"), [("", "it is a folder"), (".", "is a directory")])
def test_a_report_that_should_become_a_folder(tmp_path: Path, output: str, says: str) -> None:
    said = llmdiag("report", INCIDENT, "-o", output, cwd=tmp_path)
    assert said.code == 2
    assert says in said.err
    assert list(tmp_path.iterdir()) == []


RULE = '''
schema = 1
id = "endless"
title = "t"
severity = "low"
about = "a"
[[signals]]
id = "one"
role = "required"
says = "x"
sql = "{sql}"
[runbook]
confirm = "c"
stop_the_bleeding = "s"
fix = "f"
prevent = "p"
[[tests]]
sample = "x"
expect = "likely"
'''


def ways(folder: Path) -> Sequence[Sequence[str]]:
    (folder / "endless.toml").write_text(RULE.format(sql=ENDLESS))
    return (["query", INCIDENT, ENDLESS], ["analyze", INCIDENT, "--rules", str(folder)])


@pytest.mark.parametrize("number", [0, 1])
def test_ctrl_c_is_no_verdict(tmp_path: Path, number: int) -> None:
    tool = subprocess.Popen([sys.executable, "-m", "diag.cli", *ways(tmp_path)[number]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    (jailed,) = wait_until(lambda: children(tool.pid), WAIT_S)
    tool.send_signal(signal.SIGINT)
    out, err = tool.communicate(timeout=WAIT_S)
    assert (tool.returncode, out, err.strip()) == (130, "", "interrupted")
    wait_until(lambda: ended(jailed), WAIT_S)


@pytest.mark.parametrize(("number", "sent"), [(0, signal.SIGTERM), (1, signal.SIGKILL)])
def test_the_jail_ends_with_the_tool(tmp_path: Path, number: int, sent: signal.Signals) -> None:
    tool = subprocess.Popen([sys.executable, "-m", "diag.cli", *ways(tmp_path)[number]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (jailed,) = wait_until(lambda: children(tool.pid), WAIT_S)
    descriptor = os.pidfd_open(jailed)
    try:
        wait_until(lambda: b"\0diag.jail\0" in Path(f"/proc/{jailed}/cmdline").read_bytes(), WAIT_S)
        tool.send_signal(sent)
        tool.wait()
        wait_until(lambda: ended(jailed), WAIT_S)
    finally:
        if not ended(jailed):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_modules_of_the_current_folder_are_never_loaded() -> None:
    """The child that runs a query is started where the evidence lies."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("json", "msgspec", "duckdb", "diag"):
            (Path(folder) / f"{name}.py").write_text("raise SystemExit('executed')")
        said = shell(f"{shlex.quote(sys.executable)} -P -m diag.cli query {INCIDENT} 'SELECT 1 AS a'", Path(folder))
        assert (said.code, said.out.split()) == (0, ["a", "1"]), said.err


def test_a_mistake_of_ours_is_no_verdict(tmp_path: Path) -> None:
    """Python itself would end with 1, which is "matched", "stalled" and "differ"."""
    code = "import click, diag.cli as c; c.cli.add_command(click.Command('boom', callback=lambda: {}['\\x1b[31mred'])); c.main()"
    done = subprocess.run([sys.executable, "-c", code, "boom"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "KeyError" in done.stderr and "this is a mistake in llmdiag" in done.stderr and "\x1b" not in done.stderr, done
