"""statistic.csv of an ATB dump: what the probe itself reckoned, the only thing kept of a tensor with task "statistics".

    Device and PID,Execution Count,Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape,Max,Min,Mean,Norm,Tensor Path
    0_39943,0,Prefill_layer/Attention,Attention,5_0,input,0,float16,nd,4x16,1.500000,-1.250000,0.001221,3.123456,N/A

Six decimals: 0.000000 may be 1e-7. Max and min skip NaN, mean and norm do not. Rows stand in the order in which twelve
threads finished, which is not the order of execution. Complex figures hold a comma and shift the row: not read.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diag.tensors.dump import Direction, ReadError, Tensor, Unread
from diag.tensors.elements import named, stored
from diag.tensors.files import head_of

FIRST_COLUMNS = b"Device and PID,Execution Count,Op Name"
COLUMNS = 15
MAX_AXES = 32


class Row(NamedTuple):
    """One tensor of the table."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    direction: Direction
    number: int
    tensor: Tensor
    """Without summary where the row has none (task "tensor")."""
    has_file: bool
    """The probe wrote its content too, wherever that is now."""


def recognise(path: Path) -> bool:
    try:
        return head_of(path).startswith(FIRST_COLUMNS)
    except ReadError:
        return False


def read(path: Path) -> tuple[list[Row], list[Unread]]:
    """Rows with figures, a later one of the same tensor in place of an earlier one; and what could not be used, counted."""
    rows: dict[tuple[tuple[int, ...], Direction, int], Row] = {}
    bad = 0
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as text:
            lines = csv.reader(text)
            next(lines, None)
            for line in lines:
                row = _row(path, line)
                if row is not None:
                    rows[row.ids, row.direction, row.number] = row
                elif line:
                    bad += 1
    except (OSError, csv.Error) as error:
        return [], [Unread(str(path), f"cannot be read: {error}")]
    return list(rows.values()), [Unread(str(path), f"{bad:,} rows that are not of its 15 columns or of no type that can be compared")] if bad else []


def _row(path: Path, line: list[str]) -> Row | None:
    if len(line) != COLUMNS:
        return None
    names, ids = tuple(line[2].split("/")), line[4].split("_")
    if len(names) != len(ids) or not all(_is_number(one) for one in (*ids, line[6])) or line[5] not in ("input", "output"):
        return None
    dtype, shape = named(line[7]), line[9].split("x") if line[9] else []
    if dtype is None or len(shape) > MAX_AXES or not all(_is_number(axis) for axis in shape):
        return None
    numbers = tuple(int(one) for one in ids)
    dtype, axes = stored(dtype, tuple(int(axis) for axis in shape))
    key = "/".join(f"{one}_{name}" for one, name in zip(ids, names, strict=True)) + f"/{line[5]}.{line[6]}"
    tensor = Tensor(key, dtype, axes, path, -1, key=key, summary=tuple(_figures(line[10:14])))
    return Row(numbers, names, "input" if line[5] == "input" else "output", int(line[6]), tensor, line[14].strip() not in ("", "N/A"))


def _figures(texts: list[str]) -> Iterator[tuple[str, float]]:
    for name, text in zip(("max", "min", "mean", "norm"), texts, strict=True):
        try:
            yield name, float(text)
        except ValueError:  # N/A
            continue


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15
