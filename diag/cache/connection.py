"""A polite connection to Redis or Valkey: named, leaving idle times alone where the server can, never patient."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from diag.cache.keys import Server
from diag.errors import BadInput, CannotConnect, Denied, LlmdiagError, TimedOut

CLIENT_NAME = "llmdiag"
URL_VARIABLE = "LLMDIAG_REDIS_URL"
SCHEMES = ("redis", "rediss", "unix")
CONNECT_S = 3.0
ANSWER_S = 10.0

Client = redis.Redis


def connect(url: str | None) -> Client:
    """Connect and authenticate; `url` None takes LLMDIAG_REDIS_URL. BadInput, CannotConnect, Denied, TimedOut."""
    chosen = os.environ.get(URL_VARIABLE) if url is None else url
    if not chosen:
        raise BadInput("no Redis server was named", hint=f"give redis://HOST:PORT/DB or set {URL_VARIABLE}")
    target = name_of(chosen)
    try:
        client = Client.from_url(
            chosen, protocol=2, socket_timeout=ANSWER_S, socket_connect_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 1), redis_connect_func=_greet, health_check_interval=0,
        )  # fmt: skip
    except ValueError as error:
        raise BadInput(f"{target} is no server address: {error}", hint="redis://HOST:PORT/DB") from error
    with speaking(target):
        client.ping()
    return client


def name_of(url: str) -> str:
    """The address without user and password, as reports may show it."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise BadInput(
            f"{parts.scheme or 'a bare name'} is no kind of Redis address",
            hint="use redis://HOST:PORT/DB, rediss://… or unix:///path/to/socket",
        )
    if parts.scheme == "unix":
        return f"unix://{unquote(parts.path)}"
    try:
        port = parts.port or 6379
    except ValueError as error:
        raise BadInput("the port of the Redis address is no number", hint="redis://HOST:PORT/DB") from error
    host = parts.hostname or "127.0.0.1"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _greet(connection: Any) -> None:
    """Each connection says who it is and asks not to count as an access; servers may refuse either."""
    connection.on_connect()
    for command in (("CLIENT", "SETNAME", CLIENT_NAME), ("CLIENT", "NO-TOUCH", "ON")):
        connection.send_command(*command)
        with contextlib.suppress(redis.ResponseError):
            connection.read_response()


@contextlib.contextmanager
def speaking(target: str) -> Iterator[None]:
    """Turns the client library's errors into ours, without repeating credentials."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise Denied(f"{target} wants another user or password", hint=f"set {URL_VARIABLE}") from error
    except redis.exceptions.NoPermissionError as error:
        raise Denied(f"{target}: {error}", hint="grant the command to this user, or use another") from error
    except redis.TimeoutError as error:
        raise TimedOut(f"{target} did not answer in {ANSWER_S:.0f} s") from error
    except redis.ConnectionError as error:
        if "Authentication required" in str(error) or "NOAUTH" in str(error):
            raise Denied(f"{target} wants a password", hint=f"set {URL_VARIABLE}") from error
        raise CannotConnect(f"{target} cannot be reached: {error}", hint="is it running, is the port right?") from error
    except redis.ResponseError as error:
        text = str(error)
        if "NOAUTH" in text or "WRONGPASS" in text or text.startswith("NOPERM"):
            raise Denied(f"{target}: {text}", hint=f"set {URL_VARIABLE}") from error
        raise LlmdiagError(f"{target} answered: {text}") from error


def at_database(client: Client, number: int) -> Client:
    """A client of the same server for another database. A client never changes its own: a reconnect would undo it."""
    pool = client.connection_pool
    if pool.connection_kwargs.get("db", 0) == number:
        return client
    options = {**pool.connection_kwargs, "db": number}
    return Client(connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **options))


def own_database(client: Client) -> int:
    """The database of the address."""
    return int(client.connection_pool.connection_kwargs.get("db") or 0)


def describe(client: Client) -> Server:
    """Product, version, role, databases; what may not be asked is None and noted."""
    notes: list[str] = []
    facts: Mapping[str, Any] = {}
    try:
        facts = cast(Mapping[str, Any], client.info("everything"))
    except redis.ResponseError as error:
        notes.append(f"INFO refused ({error}): product, role and other databases are unknown")
    no_touch = _leaves_idle_times_alone(client)
    if not no_touch:
        notes.append("this server cannot leave idle times alone: reading a value resets its OBJECT IDLETIME")
    if facts.get("cluster_enabled"):
        notes.append("a cluster node: only the keys of this node were looked at")
    databases = {
        int(name[2:]): int(counts["keys"])
        for name, counts in facts.items()
        if name.startswith("db") and name[2:].isdigit() and isinstance(counts, dict)
    }
    if not facts:
        databases = {own_database(client): -1}
    product = None
    if facts:
        product = str(facts.get("server_name") or ("valkey" if "valkey_version" in facts else "redis"))
    version = facts.get("valkey_version") or facts.get("redis_version")
    role = facts.get("role")
    return Server(
        product, None if version is None else str(version), None if role is None else str(role), no_touch,
        databases, tuple(notes),
    )  # fmt: skip


def _leaves_idle_times_alone(client: Client) -> bool:
    try:
        client.client_no_touch("ON")
    except redis.ResponseError:
        return False
    return True
