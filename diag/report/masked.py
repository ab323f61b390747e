"""What is told of loose evidence, which nobody redacted yet, without the secrets that its lines hold. Pure."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from diag.redact import Redactor

Found = TypeVar("Found")
SHORT = 12
"""Characters: no line of a log that holds a secret is shorter."""


def masked(value: Found, redactor: Redactor) -> Found:
    """The same value with every text in it redacted, however deep. Equal texts are looked at once."""
    known: dict[str, str] = {}

    def walk(item: Any) -> Any:
        if isinstance(item, enum.Enum):  # a verdict is no text that is only equal to it
            return item
        if isinstance(item, str):
            if len(item) < SHORT:
                return item
            if item not in known:
                known[item] = redactor.text(item)
            return known[item]
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return dataclasses.replace(item, **{field.name: walk(getattr(item, field.name)) for field in dataclasses.fields(item) if field.init})
        if isinstance(item, msgspec.Struct):
            return msgspec.structs.replace(item, **{name: walk(getattr(item, name)) for name in item.__struct_fields__})
        if isinstance(item, Mapping):
            return {key: walk(part) for key, part in item.items()}
        if isinstance(item, list | tuple):
            parts = [walk(part) for part in item]
            return parts if isinstance(item, list) else type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
        return item

    found: Found = walk(value)
    return found
