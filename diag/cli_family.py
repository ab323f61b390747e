"""`--family` and `--family-file` of scan-cache: which families are looked at, and what is known of them beforehand."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """Adds both options to a command."""
    command = click.option(
        "--family", "families", multiple=True, metavar="NAME",
        help="Only this family, as scan-cache prints it (* for anything), or that of a family file.",
    )(command)
    return click.option(
        "--family-file", "family_files", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="What the values of a family must be, as TOML; breaking it makes a ghost.",
    )(command)  # fmt: skip


def begin(asked: Mapping[str, Any]) -> tuple[bytes, ...]:
    """From here to the end of the command they hold. Returns the marker texts that family files state. BadInput: one is wrong."""
    from diag.cache.values.selection import chosen, using

    selection = chosen(asked["families"], asked["family_files"])
    click.get_current_context().with_resource(using(selection))
    return selection.book.markers
