"""What the integers mean that a server answers."""

import redis

ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""Answers of a cluster's node about a key that it has not, or not any more."""


def plain(answer: int | redis.ResponseError | None) -> int | None:
    """None: the key is at another node of the cluster, or of another type. Raises every other error."""
    if isinstance(answer, redis.ResponseError) and not str(answer).startswith((*ELSEWHERE, "WRONGTYPE")):
        raise answer
    return answer if isinstance(answer, int) else None


def refuses_together(error: redis.ResponseError) -> bool:
    """Does a cluster's node refuse a command for several keys that it answers, or refuses, for each alone?

    Keys of one slot that moves have no CROSSSLOT: all of them are elsewhere at once.
    """
    return "CROSSSLOT" in str(error) or str(error).startswith(ELSEWHERE)


def seconds(ttl_ms: int) -> float | None:
    """Of PTTL; None: never expires."""
    return None if ttl_ms < 0 else ttl_ms / 1000
