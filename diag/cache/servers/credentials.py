"""A file with the credentials of a cache server: `USER:PASSWORD`, `:PASSWORD`, or the whole address of the server."""

from pathlib import Path
from urllib.parse import quote, urlsplit

from diag.errors import BadInput

MAX_BYTES = 64 << 10
FORMS = "one line: USER:PASSWORD, :PASSWORD, or redis://USER:PASSWORD@HOST:PORT"


def read(path: Path) -> str:
    """The line of the file. BadInput: it cannot be read, or holds nothing like it; its contents are not repeated."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES).decode()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint=FORMS) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text", hint=FORMS) from error
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) != 1 or ":" not in lines[0]:
        raise BadInput(f"{path} does not hold credentials", hint=FORMS)
    return lines[0]


def is_address(line: str) -> bool:
    """A whole address, not just user and password?"""
    return "://" in line


def put_into(url: str, line: str, *, instead: bool = False) -> str:
    """The address with `USER:PASSWORD`; one that has its own keeps them, unless they are to go in `instead`."""
    user, _, password = line.partition(":")
    parts = urlsplit(url)
    _, at, hosts = parts.netloc.rpartition("@")
    if at and not instead:
        return url
    return parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{hosts}").geturl()


def exposed(path: Path) -> str | None:
    """A warning, if others on this machine can read the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return f"{path} can be read by other users of this machine: chmod 600 {path}" if mode & 0o077 else None
