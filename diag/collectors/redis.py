"""Redis or Valkey servers the service talks to: counters, clients, and a verdict on the keys its stuck threads hold.

Sample of server.jsonl::

    {"read": 0, "ts": 1796007298.3, "target": "redis://127.0.0.1:6379", "info": {"redis_version": "7.0.15", "role": "master", ...}}

Values are judged where they are and never copied: only size, type, time to live and numbers leave the server.
"""

import datetime
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec
import redis as redis_py

from diag.bundle import Door
from diag.cache import server as cache_server
from diag.cache.connection import Client, name_of
from diag.errors import LlmdiagError
from diag.live import Collecting, Patient, until_window_end
from diag.model import Artefact, Row
from diag.tables import Table

NAME = "redis"
FEEDS = ("redis_servers", "redis_clients", "cache_keys")
NEEDS = ("sockets", "stack_locals", "log_events")
TABLES: tuple[Table, ...] = ()
BUDGET_S = 3.0
BUDGET_BYTES = 4 << 20
HINT = "LLMDIAG_REDIS_URL=redis://USER:PASSWORD@HOST:PORT llmdiag snapshot {pid}"
MAX_SERVERS = 4
MAX_KEYS = 64
INFO_FIELDS = (
    "redis_version", "valkey_version", "server_name", "role", "connected_clients", "blocked_clients", "total_commands_processed",
    "keyspace_hits", "keyspace_misses", "used_memory", "maxmemory",
)
# clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6 somewhere in a log line
KEY_IN_LOG = re.compile(r"[\w./@-]+:[\w./@:-]*[0-9a-fA-F]{16,}[\w./@:-]*")
REFUSALS = (redis_py.RedisError, OSError, LlmdiagError)


def collect(patient: Patient, door: Door) -> Collecting:
    """INFO and CLIENT LIST before and after the window, then the keys that stacks and logs name."""
    urls = _urls(patient)
    clients: dict[str, Client] = {}
    rows: list[dict[str, object]] = []
    try:
        for target, url in urls.items():
            try:
                clients[target] = cache_server.connect(url)
                rows.append(_look(clients[target], target, 0))
            except REFUSALS as error:
                _refused(door, target, error)
        yield from until_window_end()
        for target, client in clients.items():
            try:
                rows.append(_look(client, target, 1))
                door.jsonl(f"keys-{list(clients).index(target)}.jsonl", _keys(client, target, patient))
            except REFUSALS as error:
                _refused(door, target, error)
    finally:
        for client in clients.values():
            client.close()
    door.jsonl("server.jsonl", rows)


def recognise(name: str, head: bytes) -> bool:
    """Loose: `redis-cli INFO` saved to a file."""
    return b"redis_version:" in head[:4096] and b"# Server" in head[:4096]


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """server.jsonl, keys-N.jsonl, or a saved INFO -> rows."""
    for artefact in artefacts:
        if not artefact.name.endswith(".jsonl"):
            yield "redis_servers", {"source": artefact.at(1), **_server_row(artefact.name, 0, None, _info_text(artefact.text()))}
            continue
        for number, line in artefact.lines():
            record = msgspec.json.decode(line)
            if "key_hex" in record:
                yield "cache_keys", {"source": artefact.at(number), **record}
                continue
            ts = datetime.datetime.fromtimestamp(record["ts"], datetime.UTC).replace(tzinfo=None)
            row = _server_row(record["target"], record["read"], record.get("ping_s"), record["info"])
            yield "redis_servers", {"source": artefact.at(number), "ts": ts, **row}
            for client in record.get("clients", ()):
                yield "redis_clients", {
                    "source": artefact.key(f"{number}.{client.get('id')}"), "read": record["read"], "ts": ts, "target": record["target"],
                    **_client_row(client),
                }


def _urls(patient: Patient) -> dict[str, str]:
    """Shown target -> URL to connect to: given ones first, then what the sockets say."""
    given = [*patient.options.redis_urls, *filter(None, [os.environ.get("LLMDIAG_REDIS_URL")])]
    found = {name_of(url): url for url in given}
    places = {_place(url) for url in found.values()}
    for row in patient.seen("sockets"):
        if row.get("peer_kind") != "redis" or row.get("state") == "LISTEN":
            continue
        url = f"unix://{row['raddr']}" if row.get("rport") is None else f"redis://{_bracketed(str(row['raddr']))}:{row['rport']}"
        if _place(url) not in places:
            places.add(_place(url))
            found[url] = url
    return dict(list(found.items())[:MAX_SERVERS])


def _place(url: str) -> str:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1") else parts.hostname
    return parts.path if parts.scheme == "unix" else f"{host}:{parts.port or 6379}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _look(client: Client, target: str, read: int) -> dict[str, object]:
    started = time.monotonic()
    client.ping()
    ping_s = time.monotonic() - started
    info = client.info("all")
    kept = {name: info[name] for name in INFO_FIELDS if name in info}
    kept |= {f"calls_{name}": info[f"cmdstat_{name}"]["calls"] for name in ("get", "mget") if f"cmdstat_{name}" in info}
    kept["keys"] = sum(value["keys"] for name, value in info.items() if name.startswith("db") and isinstance(value, dict) and "keys" in value)
    return {"read": read, "ts": time.time(), "target": target, "ping_s": ping_s, "info": kept, "clients": _clients(client)}


def _clients(client: Client) -> list[dict[str, str]]:
    try:
        listed = client.client_list()
    except redis_py.ResponseError:
        return []
    names = ("id", "addr", "name", "db", "cmd", "age", "idle", "tot-cmds")
    return [{name: item[name] for name in names if name in item} for item in listed if item.get("name") != "llmdiag"][:500]


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
        if not row.get("cut"):
            yield str(row["repr"])
    for row in patient.seen("log_events"):
        yield from KEY_IN_LOG.findall(str(row.get("message")))


def _server_row(target: str, read: int, ping_s: object, info: Mapping[str, object]) -> dict[str, object]:
    product = str(info.get("server_name") or ("valkey" if "valkey_version" in info else "redis"))
    calls = [info[name] for name in ("calls_get", "calls_mget") if name in info]
    return {
        "read": read, "target": target, "product": product, "version": info.get("valkey_version") or info.get("redis_version"),
        "role": info.get("role"), "clients": info.get("connected_clients"), "blocked": info.get("blocked_clients"),
        "commands": info.get("total_commands_processed"), "get_calls": sum(int(str(c)) for c in calls) if calls else None,
        "hits": info.get("keyspace_hits"), "misses": info.get("keyspace_misses"), "used_bytes": info.get("used_memory"),
        "max_bytes": info.get("maxmemory"), "keys": info.get("keys"), "ping_s": ping_s,
    }


def _client_row(client: Mapping[str, object]) -> dict[str, object]:
    def number(name: str) -> int | None:
        value = client.get(name)
        return None if value is None else int(str(value))

    return {
        "client_id": number("id"), "addr": client.get("addr"), "name": client.get("name") or None, "db": number("db"), "cmd": client.get("cmd"),
        "age_s": number("age"), "idle_s": number("idle"), "commands": number("tot-cmds"),
    }


def _info_text(text: str) -> dict[str, object]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))
    kept = {name: value.strip() for name, value in pairs if name in INFO_FIELDS}
    return {name: int(value) if value.isdigit() else value for name, value in kept.items()}


def _refused(door: Door, target: str, error: BaseException) -> None:
    """A server that exists and cannot be read makes its tables not collected, with the remedy."""
    hint = "set LLMDIAG_REDIS_URL to a URL with the rights to read it"
    reason = error.message if isinstance(error, LlmdiagError) else f"{type(error).__name__}: {error}"
    for table in FEEDS:
        door.note(table, "failed", f"{target}: {reason}; {hint}")


