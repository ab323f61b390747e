"""What stands behind an address: one server, a cluster, or the primary that Sentinels name. Opens and scans each as it needs."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import redis
from redis.sentinel import MasterNotFoundError

from diag.cache.scanning import cluster_scan, resume, server
from diag.cache.scanning.how import How
from diag.cache.servers import address, connection, sentinel
from diag.cache.servers.cluster import Cluster
from diag.cache.servers.connection import ANSWER_S, URL_VARIABLE, Client, name_of, speaking
from diag.cache.servers.routing import Router
from diag.cache.servers.sentinel import Service
from diag.cache.servers.slots import Address
from diag.cache.values.judging import SAMPLE
from diag.cache.values.keys import CacheKey, ScanResult
from diag.errors import BadInput, CannotConnect, Denied, LlmdiagError, TimedOut

SENTINEL_USER = "LLMDIAG_SENTINEL_USERNAME"
SENTINEL_PASSWORD = "LLMDIAG_SENTINEL_PASSWORD"
AGAIN = 3
"""So often a scan is begun when the primary changes in the middle of it."""


def connect(url: str | None, answer_s: float = ANSWER_S) -> Client:
    """Connect to a server, a cluster or a service; `url` None takes LLMDIAG_REDIS_URL.

    A server that turns out to be a node of a cluster opens the whole cluster. BadInput, CannotConnect, Denied, TimedOut.
    """
    chosen = os.environ.get(URL_VARIABLE) if url is None else url
    found = address.several(chosen) if chosen else None
    if found is None:
        client = connection.connect(url, answer_s)
        return _whole(client, name_of(chosen or ""))
    if found.kind == "sentinel":
        return _service(found, answer_s)
    client = _first_that_answers(found, answer_s)
    with speaking(found.shown):
        whole = _whole(client, found.shown)
    if not isinstance(whole, Cluster):
        client.close()
        raise BadInput(f"{found.shown} is no cluster, or this user may not ask for its slots", hint="use redis://HOST:PORT for a single server")
    return whole


def scan(
    client: Client,
    target: str,
    pattern: bytes | str | None = None,
    *,
    databases: Sequence[int] | None = None,
    markers: Sequence[bytes] = (),
    sample: int = SAMPLE,
    each: Callable[[CacheKey], None] | None = None,
    again: Callable[[], None] | None = None,
    how: How = How(),  # noqa: B008
) -> ScanResult:
    """`server.scan` for whatever the client is. `again` is called when everything that `each` saw is to be forgotten,
    because the primary of a service was replaced and the scan begins anew on the next one."""
    if isinstance(client, Cluster):
        return cluster_scan.scan(client, target, pattern, databases=databases, markers=markers, sample=sample, each=each, how=how)
    once = partial(server.scan, client, target, pattern, databases=databases, markers=markers, sample=sample, each=each, how=how)
    return _scan_service(client, target, once, again) if isinstance(client, Service) else once()


def _scan_service(service: Service, target: str, once: Callable[[], ScanResult], again: Callable[[], None] | None) -> ScanResult:
    """A cursor means nothing to another server: a scan in whose middle the primary was replaced begins anew."""
    for _ in range(AGAIN):
        before = _changes(service, target)
        result: ScanResult | None = None
        try:
            with suppress(CannotConnect, TimedOut):
                result = once()
        except resume.Stopped as stopped:
            raise LlmdiagError("interrupted: nothing was deleted", hint="through Sentinels a scan is begun anew, not gone on with") from stopped
        after = _changes(service, target)
        if result is not None and after == before:
            return result if before == 0 else replace(result, warnings=(*result.warnings, "the primary was replaced meanwhile: all was read from the new one"))
        if again is not None:
            again()
    raise LlmdiagError(f"{target}: the primary was replaced in the middle of {AGAIN} scans", hint="nothing was deleted; scan again when it stays")


def _changes(service: Service, target: str) -> int:
    """Asked once there is a primary that answers. CannotConnect: there is none for too long."""
    with speaking(target):
        service.ping()
        while True:
            try:
                return service.changes()
            except MasterNotFoundError:  # it went away after it had answered
                service.connection_pool.disconnect()
                service.ping()


def _whole(client: Client, target: str) -> Client:
    """The cluster that this server is a node of; else the client as it is."""
    with speaking(target):
        try:
            facts = cast(Mapping[str, Any], client.info("server"))
        except redis.ResponseError:
            return client
        mode = facts.get("redis_mode") or facts.get("server_mode")
        if mode == "sentinel":
            host = target.partition("://")[2]
            raise BadInput(f"{target} is a Sentinel, no cache", hint=f"the primary of the service that it watches: redis+sentinel://{host}/SERVICE")
        if mode != "cluster":
            return client
        options = client.connection_pool.connection_kwargs
        seed: Address = (str(options.get("host") or "127.0.0.1"), int(options.get("port") or 6379))
        try:
            router = Router([seed], client)
        except redis.exceptions.NoPermissionError:  # then only this node's keys are looked at, and the report says so
            return client
    client.close()  # its nodes are spoken to over connections of their own
    return Cluster(router, int(options.get("db") or 0))


def _first_that_answers(found: address.Many, answer_s: float) -> Client:
    trouble: LlmdiagError | None = None
    for host in found.hosts:
        try:
            return connection.connect(found.plain(host), answer_s)
        except (CannotConnect, TimedOut) as error:
            trouble = error
    raise trouble or BadInput(f"{found.shown} names no host")


def _service(found: address.Many, answer_s: float) -> Service:
    like = connection.not_yet(found.plain(found.hosts[0]), answer_s).connection_pool.connection_kwargs
    options = {name: value for name, value in like.items() if name not in ("host", "port", "path")}
    asking = {name: value for name, value in options.items() if name.startswith(("ssl_", "socket_")) or name == "protocol"}
    asking["ssl"] = found.tls
    asking["username"] = found.option("sentinel_username") or os.environ.get(SENTINEL_USER) or None
    asking["password"] = found.option("sentinel_password") or os.environ.get(SENTINEL_PASSWORD) or None
    try:
        with speaking(found.shown):
            service = sentinel.open_service(found.hosts, found.service, options, asking, tls=found.tls)
            service.ping()
    except Denied as error:
        raise Denied(error.message, hint=f"the Sentinels take {SENTINEL_PASSWORD}, the server the password of the address") from error
    return service

