"""Errors that a restart leaves behind: what they say, and why they tell nothing of the engine's health.

In vLLM 0.20.2 to 0.33.0 a SIGTERM shuts the renderer's thread pool down before uvicorn stops to accept: requests that
arrive in between get HTTP 500 `cannot schedule new futures after shutdown`. It is the mark of a restart in progress.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from diag.restarts.records import Line, Restart, between_s


@dataclass(frozen=True)
class Fingerprint:
    """A text that clients or logs show while somebody restarts the service."""

    name: str
    pattern: re.Pattern[str]
    says: str


FINGERPRINTS = (
    Fingerprint("futures-after-shutdown", re.compile(r"cannot schedule new futures after shutdown|Executor shutdown has been called"),
                "requests that arrived between the signal and the end of the web server"),
    Fingerprint("engine-dead-body", re.compile(r"EngineDeadError|EngineCore encountered an issue|The server had an error while processing your request"),
                "requests that were running when the engine was taken away"),
    Fingerprint("engine-gone", re.compile(r"died unexpectedly|exited unexpectedly|(?i:worker|process).*\b(?:died|dead)\b|killed by signal|force killing"),
                "processes that missed the ones which were ended with them"),
    Fingerprint("still-loading", re.compile(r"Loading model|ServerStatus\.Starting|unavailable_error"), "requests that came before it was ready"),
    Fingerprint("refused", re.compile(r"(?i)connection refused|ECONNREFUSED|connection reset|connect error"), "requests while nobody listened"),
)  # fmt: skip
TAIL_S = 60.0
"""What a dying process says may be written this much after the signal."""
ABORTED = re.compile(r"aborting in-flight requests count=(\d{1,9})")
PROOF_OF_SIGTERM = re.compile(r"cannot schedule new futures after shutdown")


@dataclass(frozen=True)
class Consequence:
    """Lines of one kind that a restart left."""

    fingerprint: str
    n: int
    says: str
    first: Line
    last: Line


def of_message(message: str) -> Fingerprint | None:
    """The fingerprint a message bears, or None."""
    return next((item for item in FINGERPRINTS if item.pattern.search(message)), None)


def consequences(restart: Restart, lines: Iterable[Line]) -> list[Consequence]:
    """Lines with a fingerprint from the signal of an external restart until it was ready."""
    if restart.how != "external" or restart.killed_at is None:
        return []
    # signals have seconds, log lines may have less: one second before is the same moment
    end = restart.ready_at or restart.restarted_at or restart.stopped_at
    found: dict[str, list[Line]] = {}
    says = {item.name: item.says for item in FINGERPRINTS}
    for line in lines:
        after = between_s(restart.killed_at, line.ts)
        if after < -1.0 or (line.ts > end if end is not None else after > TAIL_S):
            continue
        mark = of_message(line.message)
        if mark is not None:
            found.setdefault(mark.name, []).append(line)
    return [Consequence(name, len(items), says[name], items[0], items[-1]) for name, items in found.items()]


def aborted(lines: Iterable[Line]) -> int | None:
    """Requests that vLLM says it gave up when it was ended; None = it says nothing."""
    counts = [int(match[1]) for line in lines if (match := ABORTED.search(line.message)) is not None]
    return sum(counts) if counts else None
