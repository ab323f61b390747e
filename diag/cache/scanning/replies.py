"""What the integers mean that a server answers."""

import redis

ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""Answers of a cluster's node about a key that it has not, or not any more."""


def plain(answer: int | redis.ResponseError | None) -> int | None:
    """None: the key is at another node of the cluster, or of another type. Raises every other error."""
    if isinstance(answer, redis.ResponseError) and not str(answer).startswith((*ELSEWHERE, "WRONGTYPE")):
        raise answer
    return answer if isinstance(answer, int) else None


def seconds(ttl_ms: int) -> float | None:
    """Of PTTL; None: never expires."""
    return None if ttl_ms < 0 else ttl_ms / 1000
