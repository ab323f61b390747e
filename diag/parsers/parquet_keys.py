"""What `scan-cache --out keys.parquet` wrote -> rows of cache_keys. A stranger's Parquet file is read in a child process.

The child may use so much memory and time, may open this one file, and hands back JSON lines::

    {"target":"redis://127.0.0.1:6379","db":0,"key":"clip:9e10…","key_hex":"636c…","verdict":"ghost", …}
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from diag.errors import Garbled
from diag.model import Artefact, Row
from diag.tables import CORE

MAGIC = b"PAR1"
MAX_BYTES = 4 << 30
MAX_ROWS = 300_000
MAX_TEXT = 4_096
MEMORY_BYTES = 4 << 30
"""Address space; DuckDB itself may use DUCKDB_MEMORY of it."""
DUCKDB_MEMORY = "1GB"
DEADLINE_S = 60.0
NEEDED = ("key_hex", "verdict")
HINT = "give the file that llmdiag scan-cache --out wrote"
ORIGIN = frozenset({"bundle", "host", "capture", "source"})
COLUMNS = {
    column.name: column.type for table in CORE if table.name == "cache_keys" for column in table.columns if column.name not in ORIGIN
}


def rows(artefact: Artefact) -> Iterator[Row]:
    """At most MAX_ROWS, those that are not sound first. Raises Garbled."""
    count = 0
    with _as_file(artefact) as path:
        for line in _lines(path, artefact.path):
            row = msgspec.json.decode(line)
            if "of" in row:
                if row["of"] > count:
                    reason = f"{artefact.path} has {row['of']} rows: of the sound ones only some were read, {count} in all"
                    yield "collected", {"table_name": "cache_keys", "status": "partial", "reason": reason}
                continue
            count += 1
            yield "cache_keys", {"source": artefact.key(row["key_hex"]), **row}
    if count == 0:
        yield "collected", {"table_name": "cache_keys", "status": "ok", "reason": "no key"}


@contextmanager
def _as_file(artefact: Artefact) -> Iterator[Path]:
    """A file on disk with its bytes, under a name that is no pattern to DuckDB."""
    with artefact.opener() as stream, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.parquet"
        own = getattr(stream, "name", None)
        if isinstance(own, str | os.PathLike) and Path(own).is_file():
            path.symlink_to(Path(own).absolute())
        else:
            _copy(stream, path, artefact.path)
        yield path


def _copy(stream: BinaryIO, path: Path, name: str) -> None:
    left = MAX_BYTES
    with path.open("wb") as copy:
        while chunk := stream.read(1 << 20):
            left -= len(chunk)
            if left < 0:
                raise Garbled(f"{name} is larger than {MAX_BYTES >> 30} GiB", hint=HINT)
            copy.write(chunk)


def _lines(path: Path, name: str) -> Iterator[bytes]:
    command = [sys.executable, "-m", "diag.parsers.parquet_keys", str(path.absolute()), str(MAX_ROWS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    timer = threading.Timer(DEADLINE_S, child.kill)
    timer.start()
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        yield from child.stdout
        said = child.stderr.read().decode("utf-8", "replace").strip().splitlines()
        if child.wait() != 0:
            raise Garbled(f"{name} cannot be read: {said[-1][:200] if said else 'more time or memory than it may take'}", hint=HINT)
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def _selected(columns: Mapping[str, str]) -> str:
    """Every column of the table; those that the file lacks are NULL, and whatever is of another type becomes ours or NULL."""
    return ", ".join(
        f'{_typed(name, kind)} AS "{name}"' if name in columns else f'NULL::{kind} AS "{name}"' for name, kind in COLUMNS.items()
    )


def _typed(name: str, kind: str) -> str:
    return f'left(TRY_CAST("{name}" AS VARCHAR), {MAX_TEXT})' if kind == "VARCHAR" else f'TRY_CAST("{name}" AS {kind})'


def _child(path: str, most: int) -> int:
    import duckdb

    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CPU, int(DEADLINE_S))
    _limit(resource.RLIMIT_CORE, 0)
    try:
        connection = duckdb.connect(config={"threads": 1, "memory_limit": DUCKDB_MEMORY})
        connection.execute("SET allowed_paths = [" + "'" + path.replace("'", "''") + "']")
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        found = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [[path]]).fetchall()
        columns = {str(row[0]): str(row[1]) for row in found}
        missing = [name for name in NEEDED if name not in columns]
        if missing:
            sys.stderr.write(f"no column {missing[0]}: these are no cache keys\n")
            return 1
        left = most
        for which in ("verdict IS DISTINCT FROM 'ok'", "verdict = 'ok'"):
            left -= _tell(connection, f"SELECT {_selected(columns)} FROM read_parquet(?) WHERE key_hex IS NOT NULL AND {which} LIMIT {left}", path)
        (count,) = connection.execute("SELECT count(key_hex) FROM read_parquet(?)", [[path]]).fetchone() or (0,)
        sys.stdout.write(json.dumps({"of": count}) + "\n")
        sys.stdout.flush()
    except (duckdb.Error, MemoryError, RuntimeError) as error:
        sys.stderr.write(f"no Parquet file of cache keys: {str(error).splitlines()[0] if str(error) else 'out of memory'}\n")
        return 1
    return 0


def _limit(kind: int, most: int) -> None:
    """Never above a limit that is there already: it may not be raised."""
    hard = resource.getrlimit(kind)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bound, bound))


def _tell(connection: Any, sql: str, path: str) -> int:
    count = 0
    answer = connection.execute(sql, [[path]])
    names = [column[0] for column in answer.description]
    while batch := answer.fetchmany(5_000):
        count += len(batch)
        sys.stdout.buffer.write(b"\n".join(msgspec.json.encode(dict(zip(names, row, strict=True))) for row in batch) + b"\n")
    return count


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1], int(sys.argv[2])))
