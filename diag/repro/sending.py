"""How fast is asked, how often again, and when an endpoint counts as dead."""

import email.utils
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from diag.errors import CollectorError
from diag.repro.client import Endpoint, Spoken, Trouble
from diag.repro.prompts import Prompt

TRIES = 6
"""When told to come back later."""
LONGEST_WAIT_S = 120.0
DEAD_AFTER = 5
"""Requests in a row without an answer."""
REFUSED_AFTER = 20
"""Requests in a row that the endpoint did not want."""


class Stop(Protocol):
    """Something that may be asked to stop, and can be waited with."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class EndpointDead(Exception):
    """It answers no more; the text says how that showed."""


class Stopped(Exception):
    """Somebody asked to stop, or the time is over, while something was under way."""


class Sender:
    """Asks at a steady pace, from several threads, and keeps count of what came back."""

    def __init__(self, endpoint: Endpoint, settings: Mapping[str, object], rate: float, stop: Stop, run: str | None = None) -> None:
        """`run` names this run: its requests are sent as llmdiag-RUN-1, llmdiag-RUN-2, …"""
        self.endpoint = endpoint
        self.run = run or f"{random.SystemRandom().getrandbits(32):08x}"
        self.statuses: Counter[str] = Counter()
        self._settings = settings
        self._gap_s = 1 / rate
        self._next = time.monotonic()
        self._stop = stop
        self._lock = threading.Lock()
        self._without_answer = 0
        self._unwanted = 0
        self._answered = False
        self._numbers = itertools.count(1)

    def ask(self, prompt: Prompt, *, salt: str | None = None, logprobs: bool = False) -> Spoken | Trouble:
        """One question at its turn; told to come back later (429, or 503 that says when), it does.

        Raises Stopped, EndpointDead, and LlmdiagError where nothing at all can be had from this endpoint.
        """
        for attempt in range(TRIES):
            self._await_turn()
            found = self._asked(prompt, salt, logprobs)
            if isinstance(found, Spoken) or not _is_later(found) or attempt == TRIES - 1:
                break
            self._pause(_wait_s(found.retry_after, attempt))
        if self._stop.is_set() and isinstance(found, Trouble):
            raise Stopped
        self._count(found)
        return found

    def _asked(self, prompt: Prompt, salt: str | None, logprobs: bool) -> Spoken | Trouble:
        with self._lock:
            name = f"llmdiag-{self.run}-{next(self._numbers)}"
        try:
            found = self.endpoint.ask(prompt, self._settings, salt=salt, logprobs=logprobs, name=name)
        except CollectorError as error:  # a proxy's page in between is no reason to give up what was seen so far
            if not self._answered:
                raise
            found = Trouble("garbled", error.message, request=name, sent=name)
        with self._lock:
            self.statuses["200" if isinstance(found, Spoken) else found.label] += 1
        return found

    def _await_turn(self) -> None:
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._gap_s
        self._pause(turn - now)

    def _pause(self, seconds: float) -> None:
        if self._stop.is_set() or (seconds > 0 and self._stop.wait(seconds)):
            raise Stopped

    def _count(self, found: Spoken | Trouble) -> None:
        with self._lock:
            if isinstance(found, Spoken):
                self._without_answer = self._unwanted = 0
                self._answered = True
                return
            if found.status is not None and 400 <= found.status < 500 and found.status != 429:
                self._unwanted += 1
            else:
                self._without_answer += 1
            if self._without_answer >= DEAD_AFTER:
                raise EndpointDead(f"{self._without_answer} requests in a row had no answer, the last: {found.label}, {found.says}")
            if self._unwanted >= REFUSED_AFTER:
                raise EndpointDead(f"{self._unwanted} requests in a row were refused, the last: {found.label}, {found.says}")


def _is_later(found: Trouble) -> bool:
    return found.status == 429 or (found.status == 503 and found.retry_after is not None)


def _wait_s(retry_after: str | None, attempt: int) -> float:
    """Seconds or a date, as HTTP has it; without either twice as long each time."""
    if retry_after is not None:
        try:
            return min(LONGEST_WAIT_S, max(0.0, float(retry_after)))
        except ValueError:
            moment = email.utils.parsedate_tz(retry_after)
            if moment is not None:
                return min(LONGEST_WAIT_S, max(0.0, email.utils.mktime_tz(moment) - time.time()))
    return min(LONGEST_WAIT_S, 2.0**attempt)
