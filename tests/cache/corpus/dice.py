"""Seeded draws: ids in the shapes that cache keys have, arrays, and how long a key still has to live."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Dice:
    """One source of chance for the whole corpus, so that a seed gives the same corpus again (but for clock times)."""

    def __init__(self, seed: int, now_s: float, canary: str) -> None:
        self.rnd = random.Random(seed)
        self.np = np.random.default_rng(seed)
        self.now_s = now_s
        self.canary = canary
        self._count = 0

    def serial(self) -> int:
        """A number not drawn before in this run."""
        self._count += 1
        return self._count

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.rnd.randrange(len(options))]

    def chance(self, share: float) -> bool:
        return self.rnd.random() < share

    def md5(self) -> str:
        return self.rnd.randbytes(16).hex()

    def sha256(self) -> str:
        return hashlib.sha256(self.rnd.randbytes(16)).hexdigest()

    def hex16(self) -> str:
        return self.rnd.randbytes(8).hex()

    def uuid(self) -> str:
        return str(uuid.UUID(bytes=self.rnd.randbytes(16), version=4))

    def ulid(self) -> str:
        millis = int((self.now_s - self.rnd.random() * 86400 * 7) * 1000)
        number = (millis << 80) | self.rnd.getrandbits(80)
        return "".join(CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))

    def created_s(self) -> float:
        """A write time in the last six days, seconds since the epoch."""
        return self.now_s - self.rnd.random() * 6 * 86400

    def left_s(self, ttl_s: int | None) -> int | None:
        """Seconds that an ordinary key of a family with this TTL has left: it was written some time ago."""
        return None if ttl_s is None else max(1800, int(ttl_s * self.rnd.uniform(0.1, 1.0)))

    def fresh_s(self, ttl_s: int | None) -> int | None:
        """Seconds left of a key written lately with the data's own TTL."""
        return None if ttl_s is None else int(ttl_s * self.rnd.uniform(0.7, 1.0))

    def short_s(self) -> int:
        """Seconds left of a marker that is meant to go away soon: minutes, where data lives for days."""
        return self.rnd.randrange(420, 900)

    def unit(self, *shape: int, dtype: str = "float32") -> np.ndarray:
        """A vector of norm 1, as sentence and image encoders return it."""
        drawn = self.np.standard_normal(shape, dtype=np.float32)
        return (drawn / np.linalg.norm(drawn)).astype(dtype)

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 0.5) -> np.ndarray:
        """Hidden states: near-normal numbers, so the norm hardly differs between keys."""
        return (self.np.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(dtype)
