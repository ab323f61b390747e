"""The cache server that LLMDIAG_REDIS_URL names: does it answer? Its credentials are never shown."""

from collections.abc import Iterator

from diag.cache.order import choose
from diag.cache.servers.connection import URL_VARIABLE, describe, name_of, speaking
from diag.doctor.ground import Check, Ground
from diag.errors import LlmdiagError

ORDER = 80
FIX = f"read -rs {URL_VARIABLE} && export {URL_VARIABLE}    # redis://USER:PASSWORD@HOST:PORT/DB"


def check(ground: Ground) -> Iterator[Check]:
    """Without the variable a snapshot asks the Redis that the service is connected to, without a password."""
    url = ground.environment.get(URL_VARIABLE)
    if not url:
        yield Check("redis", None, f"{URL_VARIABLE} is not set: a server that wants a password cannot be asked for ghost keys", FIX)
        return
    try:
        name = name_of(url)
        client, _ = choose(None, {URL_VARIABLE: url})
        with speaking(name):
            server = describe(client)
    except LlmdiagError as error:
        yield Check("redis", False, error.message, FIX if not error.hint else f"{FIX}    {error.hint}")
        return
    yield Check("redis", True, f"{name} answers: {server.product or 'a server that does not say what it is'} {server.version or ''}".rstrip())
