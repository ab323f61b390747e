"""All rows of a scan in a Parquet file, written a part at a time: memory holds one part, whatever the number of keys."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType

import duckdb
import msgspec

from diag.cache.values.keys import CacheKey
from diag.errors import BadInput, LlmdiagError
from diag.tables import CORE

PART_ROWS = 20_000
MEMORY = "256MB"
ORIGIN = frozenset({"bundle", "host", "capture", "source"})
"""Columns that say where a row is from; whoever reads the file knows that."""
COLUMNS = {
    column.name: column.type for table in CORE if table.name == "cache_keys" for column in table.columns if column.name not in ORIGIN
}


class RowsFile:
    """Opened with `with`; the file appears, whole and readable by its owner only, when that ends, also when a scan is interrupted.

    BadInput: the place cannot be written, which is known before anything is scanned.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[bytes] = []
        self._parts: list[Path] = []
        try:
            if path.exists() and not path.is_file():  # it would be replaced by a file, /dev/null too
                raise BadInput(f"{path} is a {'folder' if path.is_dir() else 'device or a pipe'}", hint="name a file: --out keys.parquet")
            self._folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise BadInput(f"cannot write {path}: {error.strerror}", hint="name a file in a folder that can be written") from error
        self._connection = duckdb.connect(config={"threads": 1, "memory_limit": MEMORY, "temp_directory": str(self._folder)})

    def add(self, row: CacheKey) -> None:
        """One more. LlmdiagError: the disk is full."""
        self._rows.append(msgspec.json.encode(row.row()))
        if len(self._rows) >= PART_ROWS:
            self._write_part()

    def forget(self) -> None:
        """Everything so far: the scan begins anew."""
        self._rows.clear()
        for part in self._parts:
            part.unlink()
        self._parts.clear()

    def __enter__(self) -> "RowsFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None or issubclass(kind, LlmdiagError):
                self._finish()
        finally:
            self._connection.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _finish(self) -> None:
        if self._rows or not self._parts:
            self._write_part()
        whole = self._folder / "whole.parquet"
        parts = [str(part) for part in self._parts]
        self._run(f"COPY (SELECT * FROM read_parquet(?)) TO {_quoted(whole)} (FORMAT parquet, COMPRESSION zstd)", [parts])
        try:
            whole.chmod(0o600)
            whole.replace(self.path)
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error

    def _write_part(self) -> None:
        lines, part = self._folder / "rows.jsonl", self._folder / f"{len(self._parts)}.parquet"
        try:
            lines.write_bytes(b"\n".join(self._rows))
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from error
        columns = ", ".join(f"{name}: '{kind}'" for name, kind in COLUMNS.items())
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        self._run(
            f"COPY (SELECT {names} FROM read_json(?, format = 'newline_delimited', columns = {{{columns}}})) "
            f"TO {_quoted(part)} (FORMAT parquet, COMPRESSION zstd)",
            [str(lines)],
        )
        self._rows.clear()
        self._parts.append(part)

    def _run(self, sql: str, values: list[object]) -> None:
        try:
            self._connection.execute(sql, values)
        except duckdb.Error as error:
            raise self._unwritable(str(error).splitlines()[0]) from error

    def _unwritable(self, why: str) -> LlmdiagError:
        return LlmdiagError(f"cannot write {self.path}: {why}", hint="nothing was deleted; is there room on that disk?")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
