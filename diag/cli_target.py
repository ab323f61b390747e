"""The options of cache commands that say which server, with whose credentials, and which of its databases."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diag import terminal

if TYPE_CHECKING:
    from diag.cache.servers.connection import Client

credentials_option = click.option(
    "--credentials-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
    help="USER:PASSWORD, or the address of the server with them.",
)  # fmt: skip
databases_option = click.option(
    "--db", "databases", multiple=True, type=click.IntRange(0), metavar="N", help="Only this database (repeatable; default all)."
)


def options(command: Any) -> Any:
    """--db and --credentials-file."""
    return databases_option(credentials_option(command))


def databases(asked: Mapping[str, Any]) -> tuple[int, ...] | None:
    """None: all of them."""
    return tuple(dict.fromkeys(asked["databases"])) or None


def choose(target: str | None, asked: Mapping[str, Any]) -> "tuple[Client, str]":
    """What TARGET stands for, and its name without credentials."""
    from diag.cache import order
    from diag.cache.servers import credentials

    path: Path | None = asked["credentials_file"]
    warning = None if path is None else credentials.exposed(path)
    if warning is not None:
        terminal.note(f"warning: {warning}")
    return order.choose(target, credentials_file=path)
