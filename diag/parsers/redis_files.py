"""What the redis collector writes, and a saved `redis-cli INFO`, -> rows of redis_servers, redis_clients, cache_keys.

    server.jsonl  {"read":0,"ts":1796007298.3,"target":"redis://127.0.0.1:6379","info":{"redis_version":"7.0.15", …},"clients":[…]}
    keys-0.jsonl  {"target":"redis://127.0.0.1:6379","db":0,"key":"clip:9e10…","key_hex":"636c…","verdict":"ghost", …}
"""

import datetime
from collections.abc import Iterator, Mapping

import msgspec

from diag.errors import Garbled
from diag.model import Artefact, Row
from diag.parsers.bounds import Count, Epoch

INFO_FIELDS = (
    "redis_version", "valkey_version", "server_name", "role", "connected_clients", "blocked_clients", "total_commands_processed",
    "keyspace_hits", "keyspace_misses", "used_memory", "maxmemory",
)


class Info(msgspec.Struct, frozen=True):
    """Of INFO what the tables hold; a version of two parts may have become a number on its way."""

    redis_version: str | float | None = None
    valkey_version: str | float | None = None
    server_name: str | None = None
    role: str | None = None
    connected_clients: Count | None = None
    blocked_clients: Count | None = None
    total_commands_processed: Count | None = None
    keyspace_hits: Count | None = None
    keyspace_misses: Count | None = None
    used_memory: Count | None = None
    maxmemory: Count | None = None
    calls_get: Count | None = None
    calls_mget: Count | None = None
    keys: Count | None = None


class Client(msgspec.Struct, frozen=True, rename={"tot_cmds": "tot-cmds"}):
    """One line of CLIENT LIST; numbers come as text."""

    id: Count | None = None
    addr: str | None = None
    name: str | None = None
    db: Count | None = None
    cmd: str | None = None
    age: Count | None = None
    idle: Count | None = None
    tot_cmds: Count | None = None


class Look(msgspec.Struct, frozen=True):
    """One line of server.jsonl: one read of one server."""

    read: Count
    ts: Epoch
    target: str
    info: Info
    ping_s: float | None = None
    clients: list[dict[str, str]] = []


class Key(msgspec.Struct, frozen=True):
    """One line of keys-N.jsonl: the columns of cache_keys."""

    target: str
    key_hex: str
    verdict: str
    reasons: str
    key: str | None = None
    db: Count | None = None
    family: str | None = None
    bytes: Count | None = None
    ttl_s: float | None = None
    idle_s: float | None = None
    codec: str | None = None
    dtype: str | None = None
    shape: str | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    norm: float | None = None
    nan: Count | None = None
    inf: Count | None = None
    crc_ok: bool | None = None
    version: str | None = None
    sha256: str | None = None


def rows(artefact: Artefact) -> Iterator[Row]:
    """server.jsonl, keys-N.jsonl or saved INFO -> rows. Raises Garbled, naming the line."""
    if not artefact.name.endswith(".jsonl"):
        yield "redis_servers", {"source": artefact.at(1), **_server(artefact.name, 0, None, _saved(artefact))}
        return
    line_of = _key_rows if artefact.name.startswith("keys-") else _look_rows
    for number, line in artefact.lines():
        try:
            yield from line_of(artefact, number, line)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise Garbled(f"{artefact.at(number)} is not a line of the redis collector: {error}", hint="collect again") from error


def _key_rows(artefact: Artefact, number: int, line: str) -> Iterator[Row]:
    yield "cache_keys", {"source": artefact.at(number), **msgspec.to_builtins(msgspec.json.decode(line, type=Key))}


def _look_rows(artefact: Artefact, number: int, line: str) -> Iterator[Row]:
    look = msgspec.json.decode(line, type=Look)
    clients = msgspec.convert(look.clients, list[Client], strict=False)
    ts = datetime.datetime.fromtimestamp(look.ts, datetime.UTC).replace(tzinfo=None)
    yield "redis_servers", {"source": artefact.at(number), "ts": ts, **_server(look.target, look.read, look.ping_s, look.info)}
    for client in clients:
        yield "redis_clients", {
            "source": artefact.key(f"{number}.{client.id}"), "read": look.read, "ts": ts, "target": look.target,
            "client_id": client.id, "addr": client.addr, "name": client.name or None, "db": client.db, "cmd": client.cmd,
            "age_s": client.age, "idle_s": client.idle, "commands": client.tot_cmds,
        }


def _server(target: str, read: int, ping_s: float | None, info: Info) -> Mapping[str, object]:
    calls = [count for count in (info.calls_get, info.calls_mget) if count is not None]
    version = info.redis_version if info.valkey_version is None else info.valkey_version
    return {
        "read": read, "target": target, "product": info.server_name or ("redis" if info.valkey_version is None else "valkey"),
        "version": None if version is None else str(version), "role": info.role, "clients": info.connected_clients,
        "blocked": info.blocked_clients, "commands": info.total_commands_processed, "get_calls": sum(calls) if calls else None,
        "hits": info.keyspace_hits, "misses": info.keyspace_misses, "used_bytes": info.used_memory, "max_bytes": info.maxmemory,
        "keys": info.keys, "ping_s": ping_s,
    }


def _saved(artefact: Artefact) -> Info:
    """`name:value` lines of INFO. Raises Garbled."""
    pairs = (line.partition(":") for _, line in artefact.lines() if not line.startswith("#"))
    kept = {name: value.strip() for name, colon, value in pairs if colon and name in INFO_FIELDS}
    if "redis_version" not in kept:
        raise Garbled(f"{artefact.path} is no output of INFO", hint="redis-cli INFO > info.txt")
    try:
        return msgspec.convert(kept, Info, strict=False)
    except msgspec.ValidationError as error:
        raise Garbled(f"{artefact.path} is no output of INFO: {error}", hint="redis-cli INFO > info.txt") from error
