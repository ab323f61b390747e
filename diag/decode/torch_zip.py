"""What torch.save writes: a zip of a pickle and one file per storage.

    PK\\x03\\x04 … archive/data.pkl, archive/data/0, archive/data/1, archive/version
"""

import io
import struct
import zipfile
import zlib

from diag.decode.decoded import Buffer, Decoded
from diag.decode.dtypes import BadArray
from diag.decode.pickle_ import describe, foreign
from diag.decode.pickle_arrays import storage_id
from diag.decode.pickle_machine import Machine
from diag.decode.pickle_nodes import Corrupt, Persistent, Truncated, Unsupported

NAME = "torch"
ORDER = 6

MAX_PICKLE_BYTES = 64 << 20


def sniff(data: Buffer) -> bool:
    return data[:4] == b"PK\x03\x04"


def decode(data: Buffer) -> Decoded:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read(archive, len(data))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        cut = "not a zip file" in str(error)  # its table of contents comes last
        return Decoded(NAME, problem="truncated" if cut else "corrupt", detail=f"zip: {error}")
    except (NotImplementedError, RuntimeError, ValueError, KeyError, OSError, OverflowError, struct.error) as error:
        # names that are no text, encryption, compression nobody asked for: torch reads none of it either
        return Decoded(NAME, problem="corrupt", detail=f"zip: {type(error).__name__}")


def _read(archive: zipfile.ZipFile, size: int) -> Decoded:
    names = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
    if len(names) != 1 and any("/data/" in info.filename or info.filename.endswith(("/byteorder", "/version")) for info in archive.infolist()):
        return Decoded(NAME, problem="corrupt", detail="a zip of torch without its pickle")
    if len(names) != 1:
        return Decoded("zip", detail="a zip, but none that torch writes")
    (pickled,) = names
    if pickled.file_size > min(MAX_PICKLE_BYTES, 64 * size):
        return Decoded(NAME, detail="zip not read: its pickle is too large")
    folder = pickled.filename.removesuffix("data.pkl")

    def storage(node: Persistent) -> tuple[str, Buffer] | None:
        key, kind, _count = storage_id(node)
        try:
            info = archive.getinfo(f"{folder}data/{key}")
        except KeyError as error:
            raise BadArray(f"storage {key[:32]} is missing") from error
        if info.file_size > size or info.compress_type != zipfile.ZIP_STORED:
            raise BadArray(f"storage {key[:32]} is larger than the file")
        return kind, archive.read(info)

    if sum(info.file_size for info in archive.infolist()) <= 2 * size and (bad := archive.testzip()) is not None:
        return Decoded(NAME, problem="corrupt", detail=f"zip: checksum of {bad[:64]!r}")
    machine = Machine(archive.read(pickled))
    try:
        root = machine.run()
    except (Truncated, Corrupt) as error:
        return Decoded(NAME, foreign=foreign(machine.globals), problem="corrupt", detail=f"its pickle {error}")
    except Unsupported as error:
        return Decoded(NAME, foreign=foreign(machine.globals), detail=f"pickle not read: {error}")
    return describe(root, machine, codec=NAME, storages=storage)
