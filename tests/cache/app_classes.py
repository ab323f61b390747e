"""Classes a service under test would pickle into its cache. The scanner never imports this module."""

import io
import pickle
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class CacheItem:
    """The wrapper of the published incident."""

    version: str
    data: bytes
    checksum: int
    created_at: float


@dataclass
class SkipEncoding:
    """What an encoder returned instead of raising."""

    shape: tuple[int, int]
    dtype: str
    note: str = "skip: image could not be fetched"


class NoTextAtAll:
    """A foreign object without any word in it."""

    def __init__(self) -> None:
        self.size = 3


def item(value: object, *, version: str = "v2", broken: bool = False) -> bytes:
    """A pickled CacheItem around a pickled value."""
    data = pickle.dumps(value)
    checksum = zlib.crc32(data) ^ (1 if broken else 0)
    return pickle.dumps(CacheItem(version, data, checksum, time.time()))


class Toucher:
    """Unpickling it creates a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def npy(array: Any) -> bytes:
    """What numpy.save writes."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()
