"""A polite connection to Redis or Valkey: named, leaving idle times alone where the server can, never patient."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from diag.cache.servers.address import several
from diag.cache.values.keys import Server
from diag.errors import BadInput, CannotConnect, Denied, LlmdiagError, TimedOut

CLIENT_NAME = "llmdiag"
URL_VARIABLE = "LLMDIAG_REDIS_URL"
BARE = re.compile(r"[\w.-]+(:[0-9]+)?")
SCHEMES = ("redis", "rediss", "unix")
KNOWN_OPTIONS = frozenset({"db", "username", "password"})
CONNECT_S = 3.0
ANSWER_S = 10.0

Client = redis.Redis


def connect(url: str | None, answer_s: float = ANSWER_S) -> Client:
    """Connect and authenticate; `url` None takes LLMDIAG_REDIS_URL. BadInput, CannotConnect, Denied, TimedOut.

    `answer_s` is the patience with each answer.
    """
    chosen = os.environ.get(URL_VARIABLE) if url is None else url
    if not chosen:
        raise BadInput("no Redis server was named", hint=f"give redis://HOST:PORT/DB or set {URL_VARIABLE}")
    client = not_yet(chosen, answer_s)
    with speaking(name_of(chosen)):
        try:
            client.ping()
        except (ValueError, TypeError) as error:
            raise _no_address(chosen, error) from error
    return client


def not_yet(url: str, answer_s: float = ANSWER_S) -> Client:
    """A client of one server that has not connected so far. BadInput: the address is none."""
    # a connection that the server closed while a person was thinking is opened again; a silent server is asked once
    once_more = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    try:
        return Client.from_url(
            _for_the_client(url), protocol=2, socket_timeout=answer_s, socket_connect_timeout=min(CONNECT_S, answer_s),
            retry=once_more, redis_connect_func=_greet, health_check_interval=0,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise _no_address(url, error) from error


def _no_address(url: str, error: Exception) -> BadInput:
    return BadInput(f"{name_of(url)} is no server address: {error}", hint="redis://HOST:PORT/DB")


def _for_the_client(url: str) -> str:
    """Without the options that an application gives its own client (timeouts, protocol, decoding …). BadInput: no database."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():  # the client would take 0 without a word
        raise BadInput(f"{name_of(url)}: the database behind the / is no number", hint="redis://HOST:PORT/DB")
    options = [(name, value) for name, value in parse_qsl(parts.query) if name in KNOWN_OPTIONS or name.startswith("ssl_")]
    return url.partition("?")[0] + ("?" + urlencode(options) if options else "")


def name_of(url: str) -> str:
    """The address without user and password, as reports may show it."""
    several_hosts = several(url)
    if several_hosts is not None:
        return several_hosts.shown
    try:
        parts = urlsplit(url)
    except ValueError:  # its message repeats what stands before the @
        raise BadInput("the Redis address cannot be read", hint="use redis://USER:PASSWORD@HOST:PORT/DB, special characters as %40") from None
    if parts.scheme not in SCHEMES:
        raise BadInput(
            f"{parts.scheme if '://' in url and parts.scheme else 'a bare name'} is no kind of Redis address",
            hint=f"use redis://{url}" if BARE.fullmatch(url) else
            "use redis://HOST:PORT/DB, rediss://…, unix:///path/to/socket, redis+sentinel://… or redis+cluster://…",
        )
    if parts.scheme == "unix":
        return f"unix://{unquote(parts.path)}"
    if "@" in parts.path + parts.query.partition("=")[0] + parts.fragment:  # the "host" is then a piece of the password
        raise BadInput("the Redis address has a /, ? or # before its @", hint="write it as %2F, %3F or %23 in user and password")
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
        hint = "look only at keys that this user may read: --pattern 'PREFIX*'" if "keys used as arg" in str(error) else "grant the command to this user, or use another"
        raise Denied(f"{target}: {error}", hint=hint) from error
    except redis.TimeoutError as error:
        raise TimedOut(f"{target} did not answer in time", hint=_silent(target)) from error
    except redis.ConnectionError as error:
        if "Authentication required" in str(error) or "NOAUTH" in str(error):
            raise Denied(f"{target} wants a password", hint=f"set {URL_VARIABLE}") from error
        raise CannotConnect(f"{target} cannot be reached: {error}", hint=_unreachable(target, str(error))) from error
    except redis.ResponseError as error:
        text = str(error)
        if "NOAUTH" in text or "WRONGPASS" in text or text.startswith("NOPERM"):
            raise Denied(f"{target}: {text}", hint=f"set {URL_VARIABLE}") from error
        raise LlmdiagError(f"{target} answered: {text}") from error
    except redis.RedisError as error:  # a port that speaks something else, an option the client library refuses
        raise CannotConnect(f"{target} cannot be asked: {error}", hint="is it a Redis or Valkey server, are the options of the address right?") from error


def _silent(target: str) -> str:
    if target.startswith("rediss"):
        return "if its port speaks no TLS, use redis:// instead of rediss://"
    return "it may be hung, busy, or behind a firewall; does redis-cli ping answer?"


def _unreachable(target: str, why: str) -> str:
    if target.startswith("rediss"):
        return "does its port speak TLS (else redis://), is the certificate known (?ssl_ca_certs=FILE)?"
    if "losed by server" in why or "reset by peer" in why:
        return "is it a Redis server, and does its port want TLS (rediss://)?"
    return "is it running, is the port right?"


@runtime_checkable
class Elsewhere(Protocol):
    """A client that decides for itself which server it speaks to: of a cluster, of a Sentinel service."""

    def at_database(self, number: int) -> Client:
        """The same for another database."""

    def notes(self) -> tuple[str, ...]:
        """What a report says about where it looked."""


@runtime_checkable
class Settling(Protocol):
    """A client whose server may just have been replaced by another that lacks the last writes."""

    def settle(self) -> None:
        """Wait until it is known, for some seconds at most."""


def nodes(client: Client) -> list[Client]:
    """A plain client of every server that takes writes: the primaries of a cluster; else just this one."""
    primaries = getattr(client, "primaries", None)
    return [client] if primaries is None else list(primaries().values())


def at_database(client: Client, number: int) -> Client:
    """A client of the same server for another database. A client never changes its own: a reconnect would undo it."""
    if isinstance(client, Elsewhere):
        return client.at_database(number)
    pool = client.connection_pool
    if pool.connection_kwargs.get("db", 0) == number:
        return client
    options = {**pool.connection_kwargs, "db": number}
    return Client(connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **options))


PORTABLE = {"tcp": redis.Connection, "tls": redis.SSLConnection, "unix": redis.UnixDomainSocketConnection}


def portable(client: Client) -> tuple[str, dict[str, Any]] | None:
    """How another process opens the same: kind and options, credentials included. None: only this one can."""
    pool = client.connection_pool
    kind = next((name for name, made in PORTABLE.items() if pool.connection_class is made), None)
    if kind is None or isinstance(client, Elsewhere):
        return None
    options = {name: value for name, value in pool.connection_kwargs.items() if isinstance(value, (str, int, float, bytes))}
    return kind, options


def reopened(kind: str, options: Mapping[str, Any]) -> Client:
    """What `portable` described."""
    once_more = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    pool = redis.ConnectionPool(connection_class=PORTABLE[kind], **{**options, "retry": once_more, "redis_connect_func": _greet})
    return Client(connection_pool=pool)


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
    if isinstance(client, Elsewhere):
        notes += client.notes()
    elif facts.get("cluster_enabled"):
        notes.append("a cluster node: only the keys of this node were looked at")
    databases: dict[int, int | None] = {
        int(name[2:]): int(counts["keys"])
        for name, counts in facts.items()
        if name.startswith("db") and name[2:].isdigit() and isinstance(counts, dict)
    }
    if not facts:
        databases = {own_database(client): None}
    product = None
    if facts:
        product = str(facts.get("server_name") or ("valkey" if "valkey_version" in facts else "redis"))
    version = facts.get("valkey_version") or facts.get("redis_version")
    role = facts.get("role")
    if role == "slave" and facts.get("master_link_status") == "down":
        _refuse_empty_copy(facts, databases)
        notes.append(f"this replica is cut off from its primary {facts.get('master_host')}:{facts.get('master_port')}: its copy may be old")
    return Server(
        product, None if version is None else str(version), None if role is None else str(role), no_touch,
        databases, tuple(notes), _expiring(facts),
    )  # fmt: skip


def _refuse_empty_copy(facts: Mapping[str, Any], databases: Mapping[int, int | None]) -> None:
    """A replica that has not got its copy yet looks like an empty, healthy server."""
    if facts.get("master_sync_in_progress") or not databases:
        primary = f"{facts.get('master_host')}:{facts.get('master_port')}"
        raise CannotConnect("this replica has no copy of its primary's keys yet", hint=f"wait for it, or look at the primary, {primary}")


def _expiring(facts: Mapping[str, Any]) -> dict[int, int]:
    return {
        int(name[2:]): int(counts["expires"])
        for name, counts in facts.items()
        if name.startswith("db") and name[2:].isdigit() and isinstance(counts, dict) and "expires" in counts
    }


def _leaves_idle_times_alone(client: Client) -> bool:
    try:
        client.client_no_touch("ON")
    except redis.ResponseError:
        return False
    return True
