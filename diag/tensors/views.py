"""Parts of a tensor as tensors: a description costs nothing, so a slice is one with another offset, shape and strides."""

import math
from collections.abc import Sequence
from dataclasses import replace

from diag.tensors.dump import Role, Tensor
from diag.tensors.elements import itemsize


def count(tensor: Tensor) -> int:
    """Elements."""
    return math.prod(tensor.shape)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides in elements, C order where the tensor says none."""
    if tensor.strides is not None:
        return tensor.strides
    found: list[int] = []
    step = 1
    for axis in reversed(tensor.shape):
        found.append(step)
        step *= axis
    return tuple(reversed(found))


def part(tensor: Tensor, shape: tuple[int, ...], steps: tuple[int, ...], first: int = 0, name: str | None = None) -> Tensor:
    """A tensor over some elements of another: `first` and `steps` count elements of it."""
    plain = steps == strides(replace(tensor, shape=shape, strides=None))
    view = replace(tensor, shape=shape, strides=None if plain else steps, name=tensor.name if name is None else name)
    return replace(view, offset=tensor.offset + first * itemsize(tensor.dtype))


def permuted(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """Axes in another order."""
    old = strides(tensor)
    return part(tensor, tuple(tensor.shape[axis] for axis in axes), tuple(old[axis] for axis in axes))


def selected(tensor: Tensor, axis: int, index: int, name: str | None = None) -> Tensor:
    """One index of an axis, which goes."""
    steps = strides(tensor)
    rest = tuple(number for number in range(len(tensor.shape)) if number != axis)
    return part(tensor, tuple(tensor.shape[number] for number in rest), tuple(steps[number] for number in rest), index * steps[axis], name)


def narrowed(tensor: Tensor, axis: int, start: int, length: int) -> Tensor:
    """Only the indices `start` to `start + length` of an axis."""
    steps = strides(tensor)
    shape = tuple(length if number == axis else size for number, size in enumerate(tensor.shape))
    return part(tensor, shape, steps, start * steps[axis])


def with_role(tensor: Tensor, role: Role) -> Tensor:
    """The same under another role."""
    return replace(tensor, role=role)
