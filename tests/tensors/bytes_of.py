"""The bytes of a tensor in logical C order, without the code that measures: the readers are tested on their own."""

import math

import numpy as np

from diag.tensors import elements
from diag.tensors.dump import Tensor


def bytes_of(tensor: Tensor) -> bytes:
    size = elements.itemsize(tensor.dtype)
    content = bytes(tensor.load()) if tensor.load is not None else tensor.file.read_bytes()[tensor.offset :]
    codes = np.dtype(f"V{size}")
    if tensor.strides is None:
        return content[: math.prod(tensor.shape) * size]
    stored = np.frombuffer(content, codes)
    return np.lib.stride_tricks.as_strided(stored, tensor.shape, [stride * size for stride in tensor.strides]).tobytes()
