"""Values that parsers found -> a frame whose columns have the types of their table; what does not fit is unknown, and said.

Evidence can be damaged or made up: a pid of twenty digits, a list where a number should be, half a character. One such
value must not cost the table, and must not get into it.
"""

import datetime
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from diag.tables import FLAG, INT, REAL, TIME, Column, Table

if TYPE_CHECKING:
    import pandas as pd

DTYPES = {"VARCHAR": "object", "BIGINT": "Int64", "DOUBLE": "float64", "BOOLEAN": "boolean", "TIMESTAMP": "datetime64[us]"}
BIGGEST = 2**63
FIRST, LAST = datetime.datetime(2, 1, 1), datetime.datetime(9999, 1, 1)
"""Times outside of these cannot be moved by a window without leaving the calendar; no clock shows them."""
MISFITS = (TypeError, ValueError, OverflowError, RuntimeWarning)


@dataclass(frozen=True)
class Misfit:
    """Values of one column that are not of its type and became NULL."""

    column: str
    count: int
    source: str
    """Where the first of them stands."""
    at: int = 0
    """Number of that row."""


def frame(table: Table, rows: Sequence[Mapping[str, object]]) -> "tuple[pd.DataFrame, list[Misfit]]":
    """Rows -> a frame with the columns of `table`; missing values are unknown."""
    import pandas as pd

    data, misfits = {}, []
    for column in table.columns:
        values = _values(rows, column.name)
        try:
            data[column.name] = _series(column, values)
        except MISFITS:
            fitting = [_fitted(column, value) for value in values]
            bad = [at for at, (before, after) in enumerate(zip(values, fitting, strict=True)) if before is not None and after is None]
            data[column.name] = _series(column, fitting)
            if bad:
                misfits.append(Misfit(column.name, len(bad), str(rows[bad[0]].get("source") or "unknown"), bad[0]))
    return pd.DataFrame(data), misfits


def summary(misfits: Sequence[Misfit]) -> str:
    """One sentence for a person."""
    worst = max(misfits, key=lambda item: item.count)
    names = ", ".join(Counter(item.column for item in misfits))
    return f"{sum(item.count for item in misfits)} values of {names} cannot be what they are said to be and count as unknown; see {worst.source}"


def _values(rows: Sequence[Mapping[str, object]], name: str) -> list[Any]:
    """One column; mostly every row has it."""
    try:
        return list(map(itemgetter(name), rows))
    except KeyError:
        return [row.get(name) for row in rows]


def _series(column: Column, values: Sequence[Any]) -> "pd.Series[Any]":
    """Raises one of MISFITS when a value is not of the column's type."""
    import pandas as pd

    if column.type == TIME:
        if any(issubclass(kind, int | float) for kind in set(map(type, values))):
            raise ValueError("not a time")
        times = pd.Series([_naive(value) for value in values], dtype="object")
        found = pd.to_datetime(times, format="ISO8601").astype("datetime64[us]")
        if not (found.isna() | ((found >= FIRST) & (found < LAST))).all():
            raise ValueError("no time of any clock")
        return found
    if column.type in (INT, REAL, FLAG):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            return pd.Series(values, dtype=DTYPES[column.type])
    for text in set(values):  # TypeError: a list, which is no text either
        if text is not None and (type(text) is not str or not (text.isascii() or _is_utf8(text))):
            raise ValueError("not a text")
    return pd.Series(values, dtype="object")


def _fitted(column: Column, value: object) -> object:
    """The value as one of the column's type, or None."""
    if value is None or isinstance(value, list | tuple | dict | set | bytes):
        return None
    try:
        match column.type:
            case "BIGINT":
                number = int(str(value)) if isinstance(value, str) else int(value)  # type: ignore[call-overload]
                return number if -BIGGEST <= number < BIGGEST and (isinstance(value, str) or number == value) else None
            case "DOUBLE":
                return float(value)  # type: ignore[arg-type]
            case "BOOLEAN":
                return bool(value) if value in (True, False) else None
            case "TIMESTAMP":
                return _moment(value)
    except (ValueError, OverflowError, TypeError):
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if _is_utf8(text) else text.encode("utf-8", "backslashreplace").decode()


def _moment(value: object) -> datetime.datetime | None:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    naive = _naive(value)
    return naive if isinstance(naive, datetime.datetime) and FIRST <= naive < LAST else None


def _naive(value: object) -> object:
    """Times are UTC without a zone; aware ones are converted."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
