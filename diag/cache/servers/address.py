"""Addresses of clusters and Sentinel services: several hosts in one URL. Reads text, connects to nothing.

    redis+sentinel://:PASSWORD@10.0.0.1:26379,10.0.0.2:26379/mymaster/0     redis-sentinel:// is the same
    redis+cluster://10.0.0.1:6379,10.0.0.2:6379                             redis-cluster:// is the same; rediss+… with TLS
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

from diag.errors import BadInput

Kind = Literal["cluster", "sentinel"]
SCHEME = re.compile(r"(rediss?)[+-](cluster|sentinel)")
PORTS = {"cluster": 6379, "sentinel": 26379}
EXAMPLES = {"cluster": "redis+cluster://HOST:PORT,HOST:PORT", "sentinel": "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE"}


@dataclass(frozen=True)
class Many:
    """An address with several hosts."""

    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    userinfo: str
    """As in the URL, still quoted; "" if there is none."""
    service: str | None
    db: str
    """Digits, or "" for the first."""
    query: str

    @property
    def shown(self) -> str:
        """Without user and password, as reports may show it; the same for every way to write it."""
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts)
        service = "" if self.service is None else f"/{quote(self.service, safe='')}"
        return f"redis{'s' if self.tls else ''}+{self.kind}://{hosts}{service}"

    def plain(self, host: tuple[str, int]) -> str:
        """The URL of one server with the credentials and options of this address."""
        name = f"[{host[0]}]" if ":" in host[0] else host[0]
        user = f"{self.userinfo}@" if self.userinfo else ""
        return f"redis{'s' if self.tls else ''}://{user}{name}:{host[1]}/{self.db}" + (f"?{self.query}" if self.query else "")

    def option(self, name: str) -> str | None:
        """One option behind the ?."""
        return parse_qs(self.query).get(name, [None])[0]


def several(url: str) -> Many | None:
    """The parts of a cluster's or a service's address; None: it is another kind. BadInput: it cannot be read."""
    scheme, mark, rest = url.partition("://")
    found = SCHEME.fullmatch(scheme.lower())
    if not mark or found is None:
        return None
    kind: Kind = "cluster" if found[2] == "cluster" else "sentinel"
    hint = EXAMPLES[kind]
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"redis://host{rest[len(authority):]}")  # several hosts, some in brackets, are more than it reads
    if "@" in parts.path + parts.query.partition("=")[0] + parts.fragment:
        raise BadInput("the Redis address has a /, ? or # before its @", hint="write it as %2F, %3F or %23 in user and password")
    userinfo, _, hosts = authority.rpartition("@")
    names = [_host(text, PORTS[kind], hint) for text in hosts.split(",") if text]
    if not names:
        raise BadInput(f"the {scheme} address names no host", hint=hint)
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if kind == "sentinel" and path else None
    db = path.pop(0) if path else ""
    if path or not (db == "" or db.isdecimal()):
        raise BadInput(f"the database at the end of the {scheme} address is no number", hint=f"{hint}/DB" if kind == "sentinel" else hint)
    return Many(kind, found[1] == "rediss", tuple(names), userinfo, service, db, parts.query)


def _host(text: str, port: int, hint: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]+))?", text)
    if found is None:
        raise BadInput("a host of the Redis address cannot be read", hint=hint)
    number = int(found["port"] or port)
    if not 0 < number < 65536:
        raise BadInput("a port of the Redis address is out of range", hint=hint)
    return found["six"] or found["name"], number
