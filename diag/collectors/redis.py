"""Redis or Valkey servers the service talks to: counters, clients, and a verdict on the keys its stuck threads hold.

Sample of server.jsonl::

    {"read": 0, "ts": 1796007298.3, "target": "redis://127.0.0.1:6379", "info": {"redis_version": "7.0.15", "role": "master", ...}}

Values are judged where they are and never copied: only size, type, time to live and numbers leave the server.
"""

import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import redis as redis_py

from diag import procfs
from diag.bundle import Door
from diag.cache.offline.rdb import HEADER, HEADER_BYTES
from diag.cache.scanning import server as cache_server
from diag.cache.servers.connection import Client, name_of, speaking
from diag.errors import BadInput, Denied, Garbled, LlmdiagError
from diag.live import Collecting, Patient, until_window_end
from diag.model import Artefact, Row
from diag.parsers import parquet_keys, redis_files
from diag.parsers.key_texts import is_address
from diag.tables import Table

NAME = "redis"
FEEDS = ("redis_servers", "redis_clients", "cache_keys")
NEEDS = ("sockets", "stack_locals", "log_events")
TABLES: tuple[Table, ...] = ()
BUDGET_S = 3.0
BUDGET_BYTES = 4 << 20
HINT = "LLMDIAG_REDIS_URL=redis://HOST:PORT llmdiag snapshot {pid}"
COLUMN_HINTS = {"cache_keys.verdict": "llmdiag scan-cache --keys-from {bundle}"}
PATIENCE_S = 2.0
"""With each answer of a server; one that was silent is not asked again."""
MAX_SERVERS = 4
MAX_KEYS = 64
# clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6 somewhere in a log line
KEY_IN_LOG = re.compile(r"[\w./@-]+:[\w./@:-]*[0-9a-fA-F]{16,}[\w./@:-]*")
SERVERS, KEYS = FEEDS[:2], FEEDS[2:]
Seen = Callable[[str], Sequence[Mapping[str, object]]]


def collect(patient: Patient, door: Door) -> Collecting:
    """INFO and CLIENT LIST before and after the window, then the keys that stacks and logs name."""
    clients: dict[str, Client] = {}
    refusing: set[str] = set()
    rows: list[dict[str, object]] = []
    try:
        for target, url in _urls(patient, door).items():
            with _noting(door, target, FEEDS):
                clients[target] = cache_server.connect(url, PATIENCE_S)
        for target, client in list(clients.items()):
            try:
                rows.append(_look(client, target, 0))
            except Denied as error:  # its keys may still be allowed
                refusing.add(target)
                _refused(door, target, error, SERVERS)
            except LlmdiagError as error:
                clients.pop(target).close()
                _refused(door, target, error, FEEDS)
        yield from until_window_end()
        for number, (target, client) in enumerate(clients.items()):
            try:
                if target not in refusing:
                    rows.append(_look(client, target, 1))
            except LlmdiagError as error:
                _refused(door, target, error, FEEDS)
                continue
            with _noting(door, target, KEYS), speaking(target):
                door.jsonl(f"keys-{number}.jsonl", _keys(client, target, patient))
    finally:
        for client in clients.values():
            client.close()
    door.jsonl("server.jsonl", rows)


def would_read(patient: Patient, door: Door) -> list[str]:
    """The servers that would be asked, without credentials."""
    return [f"INFO and CLIENT LIST of {target}, and the keys that stacks and logs name" for target in _urls(patient, door)]


def hint(seen: Seen) -> str:
    """With the address of the server where the sockets tell; where they were not read, a snapshot finds it by itself."""
    found = next(_discovered(seen), None)
    if found is not None:
        return HINT.replace("redis://HOST:PORT", shlex.quote(found))
    looked = any(row.get("table_name") == "sockets" and row.get("status") == "ok" for row in seen("collected"))
    return HINT if looked else "llmdiag snapshot {pid}"


def recognise(name: str, head: bytes) -> bool:
    """Loose: `redis-cli INFO` saved to a file, an RDB file, or the rows that `scan-cache --out` wrote."""
    if head.startswith(parquet_keys.MAGIC):
        return True
    return (b"redis_version:" in head[:4096] and b"# Server" in head[:4096]) or HEADER.match(head) is not None


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """server.jsonl, keys-N.jsonl, a saved INFO, an RDB file, or a Parquet file -> rows. Raises Garbled."""
    for artefact in artefacts:
        if artefact.name.endswith(".jsonl"):
            yield from redis_files.rows(artefact)
            continue
        with artefact.opener() as stream:
            head = stream.read(HEADER_BYTES)
            loose_rdb = HEADER.match(head) is not None
            file = getattr(stream, "name", None)
        if loose_rdb and isinstance(file, str | os.PathLike):
            from diag.cache.offline.evidence import rows

            yield from rows(Path(file), artefact)
        elif head.startswith(parquet_keys.MAGIC):
            yield from parquet_keys.rows(artefact)
        else:
            yield from redis_files.rows(artefact)


def _urls(patient: Patient, door: Door) -> dict[str, str]:
    """Shown target -> URL to connect to: given ones first, then what the sockets say."""
    found: dict[str, str] = {}
    for url in filter(None, [*patient.options.redis_urls, os.environ.get("LLMDIAG_REDIS_URL")]):
        with _noting(door, "a Redis address", FEEDS):
            found[name_of(url)] = url
    if not found and ("sockets" in patient.options.skip or not all(map(procfs.shows_descriptors, patient.pids))):
        for table in FEEDS:
            door.note(table, "partial", "no server is known because the sockets of the service were not all read; name it with --redis URL")
    places = {_place(url) for url in found.values()}
    for url in _discovered(patient.seen):
        if _place(url) not in places:
            places.add(_place(url))
            found[url] = url
    return dict(list(found.items())[:MAX_SERVERS])


def _discovered(seen: Seen) -> Iterator[str]:
    """URLs of the Redis servers that the service is connected to."""
    for row in seen("sockets"):
        if row.get("peer_kind") == "redis" and row.get("state") != "LISTEN" and row.get("raddr") is not None:
            yield f"unix://{row['raddr']}" if row.get("rport") is None else f"redis://{_bracketed(str(row['raddr']))}:{row['rport']}"


def _place(url: str) -> str:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1") else parts.hostname
    return parts.path if parts.scheme == "unix" else f"{host}:{parts.port or 6379}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _look(client: Client, target: str, read: int) -> dict[str, object]:
    """One read of one server. Raises what `speaking` does, and Garbled."""
    with speaking(target):
        started = time.monotonic()
        client.ping()
        ping_s = time.monotonic() - started
        info, clients = _info(client, target), _clients(client, target)
    return {"read": read, "ts": time.time(), "target": target, "ping_s": ping_s, "info": info, "clients": clients}


def _info(client: Client, target: str) -> dict[str, object]:
    with _understood(target):
        info = client.info("all")
        kept = {name: info[name] for name in redis_files.INFO_FIELDS if name in info}
        kept |= {f"calls_{name}": info[f"cmdstat_{name}"]["calls"] for name in ("get", "mget") if f"cmdstat_{name}" in info}
        kept["keys"] = sum(value["keys"] for name, value in info.items() if name.startswith("db") and isinstance(value, dict) and "keys" in value)
        if "redis_version" not in kept:
            raise KeyError("redis_version")
        return kept


def _clients(client: Client, target: str) -> list[dict[str, str]]:
    """At most 500 of CLIENT LIST; none where this user may not list them."""
    names = ("id", "addr", "name", "db", "cmd", "age", "idle", "tot-cmds")
    try:
        with _understood(target):
            listed = [item for item in client.client_list() if item.get("name") != "llmdiag"]
            return [{name: item[name] for name in names if name in item} for item in listed[:500]]
    except redis_py.ResponseError:
        return []


@contextlib.contextmanager
def _understood(target: str) -> Iterator[None]:
    """The client library stumbles over answers that are well-formed and still not those of Redis."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Garbled(f"{target} answers, but not as Redis does", hint="another service may listen there: check the address") from error


def _keys(client: Client, target: str, patient: Patient) -> list[Mapping[str, object]]:
    """Key-like texts of stacks and logs -> judged rows; a text that is no key of this server is `absent`."""
    wanted = list(dict.fromkeys(_named(patient)))[:MAX_KEYS]
    if not wanted:
        return []
    judged = cache_server.inspect_keys(client, target, [text.encode() for text in wanted])
    rows: list[Mapping[str, object]] = [item.row() for item in judged]
    known = {row["key"] for row in rows}
    rows += [
        {"target": target, "key": text, "key_hex": text.encode().hex(), "verdict": "absent", "reasons": ""} for text in wanted if text not in known
    ]
    return rows


def _named(patient: Patient) -> Iterator[str]:
    for row in patient.seen("stack_locals"):
        if not row.get("cut") and not is_address(str(row["repr"])):
            yield str(row["repr"])
    for row in patient.seen("log_events"):
        yield from KEY_IN_LOG.findall(str(row.get("message")))


@contextlib.contextmanager
def _noting(door: Door, target: str, tables: Sequence[str]) -> Iterator[None]:
    """A server that exists and cannot be read makes its tables not collected, with the remedy."""
    try:
        yield
    except LlmdiagError as error:
        _refused(door, target, error, tables)


def _refused(door: Door, target: str, error: LlmdiagError, tables: Sequence[str]) -> None:
    words = error.message if target in error.message or isinstance(error, BadInput) else f"{target}: {error.message}"
    hint = error.hint if not isinstance(error, Denied) else "set LLMDIAG_REDIS_URL to a URL with the rights to read it"
    for table in tables:
        door.note(table, "failed", f"{words}; {hint or 'check the address: --redis URL'}")
