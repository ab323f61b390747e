"""For tests of the readers: a description turned into its bytes by the shortest means, and files read into one dict."""

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diag.tensors.dump import ReadError, Tensor, Unread
from diag.tensors.elements import code_dtype, numpy_dtype
from diag.tensors.files import format_of


def cells(tensor: Tensor) -> npt.NDArray[np.generic]:
    """The elements in the tensor's shape, as numpy's type or as codes."""
    kind = numpy_dtype(tensor.dtype) or code_dtype(tensor.dtype)
    kind = kind.newbyteorder(">" if tensor.big_endian else "<")
    if 0 in tensor.shape:
        return np.empty(tensor.shape, kind)
    if tensor.load is not None:
        data = tensor.load()
        assert tensor.offset == 0
    else:
        with tensor.file.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    strides = None if tensor.strides is None else tuple(step * kind.itemsize for step in tensor.strides)
    return np.ndarray(tensor.shape, kind, data, tensor.offset, strides)


def logical_bytes(tensor: Tensor) -> bytes:
    """All elements in C order, little-endian."""
    array = cells(tensor)
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What the file's format says it holds: tensors by key, and what is unread with the reason, by what follows `#`."""
    with path.open("rb") as file:
        kind = format_of(path, file.read(4096))
    assert kind is not None, f"no format recognises {path.name}"
    tensors: dict[str, Tensor] = {}
    unread: dict[str, str] = {}
    for item in kind.read(path):
        if isinstance(item, Unread):
            assert item.source.startswith(str(path)), item
            key = item.source.removeprefix(str(path)).removeprefix("#")
            assert key not in unread, f"{key} is named twice: {unread[key]}; {item.reason}"
            unread[key] = item.reason
        else:
            assert item.key not in tensors, f"{item.key} is there twice"
            assert item.file == path
            tensors[item.key] = item
    return tensors, unread


def refusal(path: Path) -> str:
    """Why a file is not read at all, or its only tensor is not."""
    try:
        tensors, unread = read(path)
    except ReadError as error:
        return str(error)
    assert not tensors, f"read {sorted(tensors)} although it should be refused; named: {unread}"
    return "; ".join(unread.values())
