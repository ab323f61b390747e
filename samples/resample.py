"""Record the samples anew: each is a bundle that `llmdiag snapshot` took of a lab in a known state.

    python samples/resample.py [SAMPLE…]     # names as in the rules, e.g. ghost-key-retry-loop/incident
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import edited
import states

from diag import labs

HERE = Path(__file__).parent
GHOST_LAB = HERE / "ghost-key-retry-loop" / "lab.py"
WAIT_S = 30.0


def snapshot(lab: labs.Lab, sample: str, *extra: str) -> None:
    """Take the bundle of a lab that is in its state."""
    target = HERE / f"{sample}.zip"
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "diag.cli", "snapshot", str(lab.pid), "-o", str(target), *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    subprocess.run([sys.executable, str(HERE / "neutral.py"), str(target)], check=True)
    print(f"{sample}: exit {done.returncode}: {(done.stdout or done.stderr).splitlines()[0]}")


@contextlib.contextmanager
def ghost_lab(*args: str) -> Iterator[labs.Lab]:
    """The ghost-key lab with a cache server of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        labs.start_server(Path(folder)) as server,
        labs.start_lab(GHOST_LAB, "--redis", server.tcp_url, *args, log=Path(folder) / "lab.log") as lab,
    ):
        yield lab


def ghost_incident(sample: str, *extra: str) -> None:
    with ghost_lab("--ghost", "marker", "--workers", "2") as lab:
        for _ in range(2):
            lab.post_later(labs.damaged_image())
        labs.wait_until(lambda: lab.get("/health").status != 200, WAIT_S)
        snapshot(lab, sample, *extra)


def ghost_busy(sample: str) -> None:
    with ghost_lab("--no-ghost", "--busy") as lab:
        labs.wait_until(lambda: lab.metrics()["vllm:request_success_total"] > 100, WAIT_S)
        snapshot(lab, sample)


def ghost_idle(sample: str) -> None:
    with ghost_lab("--no-ghost") as lab:
        lab.post(b"a healthy image")
        snapshot(lab, sample)


def spin(sample: str) -> None:
    with tempfile.TemporaryDirectory() as folder, labs.start_lab(HERE / "cpu-spin" / "lab.py", log=Path(folder) / "log") as lab:
        lab.get("/health")
        stuck = lab.get_later("/tokenize?text=aab%00")
        labs.wait_until(lambda: labs.is_hot(lab.pid), WAIT_S)
        snapshot(lab, sample)
        assert not stuck.done()


def blocked(sample: str) -> None:
    with tempfile.TemporaryDirectory() as folder, labs.start_lab(HERE / "event-loop-blocked" / "lab.py", log=Path(folder) / "log") as lab:
        lab.get("/health")
        stuck = [lab.get_later("/lookup")]

        def others_wait() -> bool:
            stuck.append(lab.get_later("/health"))
            return labs.backlog(lab.port) >= 2

        labs.wait_until(others_wait, WAIT_S, every_s=0.2)
        snapshot(lab, sample)
        assert not stuck[0].done()


def silent(sample: str) -> None:
    with small_lab() as lab:
        lab.get("/health")
        stuck = lab.get_later("/reload")
        labs.wait_until(lambda: labs.backlog(lab.port) == 0, WAIT_S)
        snapshot(lab, sample)
        assert not stuck.done()


def plain(sample: str) -> None:
    with small_lab("--plain") as lab:
        snapshot(lab, sample)


def ended(sample: str) -> None:
    with small_lab() as lab:
        lab.get("/health")
        journal = HERE / sample / "manifest.jsonl"

        def half_way() -> None:
            labs.wait_until(lambda: journal.exists() and '-00.json"' in journal.read_text(), WAIT_S)
            os.kill(lab.pid, signal.SIGKILL)

        killer = threading.Thread(target=half_way)
        killer.start()
        snapshot(lab, sample)
        killer.join()


@contextlib.contextmanager
def small_lab(*args: str) -> Iterator[labs.Lab]:
    """The lab of service-silent."""
    with tempfile.TemporaryDirectory() as folder, labs.start_lab(HERE / "service-silent" / "lab.py", *args, log=Path(folder) / "log") as lab:
        yield lab


def entered(sample: str) -> None:
    with states.entered(sample) as lab:
        snapshot(lab, sample)


RECORDERS: dict[str, Callable[[str], None]] = {
    **{f"{rule}/{state}": entered for rule, known in states.STATES.items() if rule not in states.NEED_TORCH | {"oom-killed"} for state in known},
    "ghost-key-retry-loop/incident": ghost_incident,
    "ghost-key-retry-loop/redis-withheld": lambda sample: ghost_incident(sample, "--skip", "redis"),
    "ghost-key-retry-loop/busy-healthy": ghost_busy,
    "ghost-key-retry-loop/idle-healthy": ghost_idle,
    "cpu-spin/incident": spin,
    "event-loop-blocked/incident": blocked,
    "cache-values/*": lambda _: subprocess.run([sys.executable, str(HERE / "cache-values" / "fill.py")], check=True) and None,
    "service-silent/incident": silent,
    "service-silent/no-http": plain,
    "process-ended/incident": ended,
    **dict.fromkeys(edited.EDITS, edited.record),  # last: they are made of the records above
}


def main() -> None:
    for sample in sys.argv[1:] or RECORDERS:
        RECORDERS[sample](sample)


if __name__ == "__main__":
    main()
