"""The primary of a Sentinel service as one client: every new connection asks the Sentinels who it is now."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any, cast

import redis
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool, SentinelManagedConnection

from diag.cache.servers.connection import Client
from diag.cache.servers.slots import Address, text_of
from diag.errors import BadInput

FAILOVER_S = 60.0
"""How long a service that was up may have no primary: twice the time in which Sentinels notice with their default settings."""
FIRST_S = 5.0
"""The same for one that never answered."""
PAUSE_S = 0.05
ASK_EVERY_S = 0.5
SETTLE_S = 15.0
WAIT_MS = 500


class NoPrimary(redis.RedisError):
    """Nobody took over in time."""


class _Sentinels(Sentinel):
    """Remembers who the primary was."""

    def __init__(self, sentinels: Sequence[Address], asking: dict[str, Any]) -> None:
        super().__init__(list(sentinels), sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
        self.primaries: list[Address] = []
        """One after the other, as connections found them."""

    def discover_master(self, service_name: str) -> Address:
        """Asked by name, which already tells the promoted replica while the fail-over is under way."""
        trouble: list[str] = []
        for sentinel in list(self.sentinels):
            try:
                address = sentinel.sentinel_get_master_addr_by_name(service_name)
            except redis.AuthenticationError:
                raise
            except (redis.ConnectionError, redis.TimeoutError) as error:
                trouble.append(str(error))
                continue
            if address:  # no name: no such service
                self.sentinels.remove(sentinel)
                self.sentinels.insert(0, sentinel)
                host, port = cast(tuple[bytes | str, int], address)
                return host.decode() if isinstance(host, bytes) else host, port
        raise MasterNotFoundError(f"no Sentinel names a primary of {service_name}: {'; '.join(trouble) or 'they do not know it'}")

    def connected(self, address: Address) -> None:
        if not self.primaries or self.primaries[-1] != address:
            self.primaries.append(address)


class _Primary(SentinelManagedConnection):
    """A connection to whoever is the primary now. While there is none it waits; to a replica it does not connect.

    A primary that was replaced may not know for seconds, and goes on to take writes that will be lost: so the Sentinels
    are asked again while the connection is used.
    """

    asked = 0.0

    def _connect_retry(self) -> None:
        if self._sock:
            return
        pool = self.connection_pool
        known = cast(_Sentinels, pool.sentinel_manager)
        patience_s = FAILOVER_S if known.primaries else FIRST_S
        deadline = time.monotonic() + patience_s
        while True:
            try:
                address = cast(Address, pool.get_master_address())
                self.connect_to(address)  # type: ignore[no-untyped-call]
                self._refuse_replica(address)
                known.connected(address)
                self.asked = time.monotonic()
                return
            except redis.AuthenticationError:
                raise
            except (redis.ConnectionError, redis.TimeoutError) as error:
                self.disconnect()  # type: ignore[no-untyped-call]
                if time.monotonic() > deadline:  # another class: nobody has to try this again
                    raise NoPrimary(f"no primary of {pool.service_name} for {patience_s:.0f} s: {error}") from error
                time.sleep(PAUSE_S)

    def check_health(self) -> None:
        """Before each command."""
        if self._sock and 0 < self.asked < time.monotonic() - ASK_EVERY_S:
            self.asked = time.monotonic()
            try:
                now = cast(Address, self.connection_pool.sentinel_manager.discover_master(self.connection_pool.service_name))
            except (redis.ConnectionError, redis.TimeoutError):  # then the server itself has to tell
                return
            if now != (self.host, self.port):
                self.disconnect()
                raise redis.ConnectionError(f"{text_of(now)} is the primary now")
        super().check_health()  # type: ignore[no-untyped-call]

    def _refuse_replica(self, address: Address) -> None:
        """Sentinels name the new primary a moment before it knows, and the old one until they miss it."""
        self.send_command("ROLE")  # type: ignore[no-untyped-call]
        try:
            role = cast(Sequence[bytes], self.read_response())[0]
        except redis.ResponseError:  # not allowed: a replica refuses the first write
            return
        if role not in (b"master", "master"):
            raise redis.ConnectionError(f"{text_of(address)} is no primary yet")


class _PrimaryTLS(_Primary, redis.SSLConnection):
    """The same over TLS."""


class Service(Client):
    """The primary of a service, whoever that is."""

    def __init__(self, sentinels: _Sentinels, name: str, options: dict[str, Any], *, tls: bool) -> None:
        self.sentinels, self.service, self._options, self._tls = sentinels, name, options, tls
        kind = _PrimaryTLS if tls else _Primary
        super().__init__(connection_pool=SentinelConnectionPool(name, sentinels, connection_class=kind, **options))  # type: ignore[no-untyped-call]

    def at_database(self, number: int) -> "Service":
        if number == self._options.get("db", 0):
            return self
        return Service(self.sentinels, self.service, {**self._options, "db": number}, tls=self._tls)

    def client(self) -> Client:
        """One with a connection to itself."""
        return Client(connection_pool=self.connection_pool, single_connection_client=True)

    def changes(self) -> int:
        """How often the primary was found to be another server; asks the Sentinels. ConnectionError: there is none."""
        current = self.sentinels.discover_master(self.service)
        known = self.sentinels.primaries
        if known and known[-1] == current:
            return len(known) - 1
        self.connection_pool.disconnect()  # the old one may be up and not know
        return len(known)

    def settle(self) -> None:
        """After writes: until a replica has them, or another primary took over, but not for long.

        Sentinels tell of a promotion only seconds after it; until then the old primary takes writes that will be lost.
        """
        deadline = time.monotonic() + SETTLE_S
        with contextlib.suppress(redis.ResponseError):  # no right to WAIT: nothing to be known
            while self.sentinels.discover_slaves(self.service) and time.monotonic() < deadline:  # type: ignore[no-untyped-call]
                with contextlib.suppress(MasterNotFoundError):
                    self.ping()
                    if self.changes() > 0 or self.wait(1, WAIT_MS):
                        return

    def notes(self) -> tuple[str, ...]:
        """What a report says about it."""
        known = self.sentinels.primaries
        return (f"the primary of {self.service}, which its Sentinels say is {text_of(known[-1])}",) if known else ()


def open_service(sentinels: Sequence[Address], name: str | None, options: dict[str, Any], asking: dict[str, Any], *, tls: bool) -> Service:
    """`options` for the primary, `asking` for the Sentinels. BadInput: no such service, or several and no name."""
    manager = _Sentinels(sentinels, asking)
    return Service(manager, _service(manager, name), options, tls=tls)


def _service(manager: _Sentinels, name: str | None) -> str:
    """The one that was named, or the only one there is."""
    if name is None:
        known = _known(manager)
        if len(known) != 1:
            raise BadInput("the address names no service", hint=f"redis+sentinel://HOST:PORT/SERVICE; the Sentinels watch: {', '.join(known) or 'none'}")
        return known[0]
    try:
        manager.discover_master(name)
    except MasterNotFoundError:
        known = _known(manager)
        if name not in known:
            raise BadInput(f"the Sentinels watch no service {name}", hint=f"they watch: {', '.join(known) or 'none'}") from None
    return name


def _known(manager: Sentinel) -> list[str]:
    """Names of the services. ConnectionError and others: of the last Sentinel, if none answers."""
    trouble: redis.RedisError = MasterNotFoundError("no Sentinel was named")
    for sentinel in manager.sentinels:
        try:
            return sorted(cast(dict[str, Any], sentinel.sentinel_masters()))
        except redis.AuthenticationError:
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            trouble = error
    raise trouble
