"""Reads kept on disk as they come, redacted, so that they can be judged again: the folder that `recorded` reads.

`reads.jsonl` and the bodies as diag/health/reads.py says, and with process evidence `processes.jsonl`, one look a line.
A read is listed only when its body is there: a folder whose writer was killed is whole.
"""

import gzip
import io
import zlib
from pathlib import Path

import msgspec

from diag.errors import BadInput, BundleError
from diag.health.polling import Look
from diag.health.proof import Look as ProcessLook
from diag.health.reads import LIST
from diag.loose import shown
from diag.parsers import prometheus
from diag.redact import Redactor

PROCESSES = "processes.jsonl"


class Recorder:
    """Writes into a folder of its own. Raises BadInput when there is something in it, BundleError when it cannot be written."""

    def __init__(self, folder: Path, token: str | None = None) -> None:
        self._folder = folder
        self._count = 0
        self._redactor = Redactor()
        if token is not None:
            self._redactor.pair("authorization", f"Bearer {token}")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise BadInput(f"{shown(folder)} is not empty", hint="name a new folder with --record: reads of two checks make no sequence")
        except OSError as error:
            raise self._named(error) from error

    def add(self, look: Look) -> None:
        """One read; what was packed is kept plain. Raises BundleError."""
        self._count += 1
        record = msgspec.structs.replace(look.record, url=self._redactor.url(look.record.url))
        try:
            if look.body is not None:
                record = msgspec.structs.replace(record, file=f"{self._count:04d}.txt")
                text = self._redactor.text(_plain(look.body).decode("utf-8", "replace"))
                (self._folder / f"{self._count:04d}.txt").write_text(text, encoding="utf-8")
            self._append(LIST, msgspec.json.encode(record))
        except OSError as error:
            raise self._named(error) from error

    def add_processes(self, look: ProcessLook) -> None:
        """One look at the processes. Raises BundleError."""
        try:
            self._append(PROCESSES, msgspec.json.encode(look))
        except OSError as error:
            raise self._named(error) from error

    def _append(self, name: str, line: bytes) -> None:
        with (self._folder / name).open("ab") as stream:
            stream.write(line + b"\n")

    def _named(self, error: OSError) -> BundleError:
        return BundleError(f"cannot write {shown(self._folder)}: {error.strerror}", hint="name a writable folder with --record")


def _plain(body: bytes) -> bytes:
    """Unpacked, as much of it as the parser would read."""
    if not prometheus.is_gzip(body):
        return body
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(body)).read(prometheus.MAX_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b"<damaged gzip>"
