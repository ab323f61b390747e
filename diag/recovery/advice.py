"""What would shorten a stage, and how to come back: the bottleneck of a recovery -> advice for a person."""

OF_STAGE = {
    "detect": "notice it sooner: a 1 s heartbeat with two misses finds a death in about 3 s (5 s intervals need more than 10 s); act on device and NCCL errors "
    "at once, and use a slow probe only to confirm",
    "stop": "shorten the way out: a grace period that is no longer than a request takes, then KILL; switch traffic away before it ends",
    "reclaim": "wait for the record that memory was reclaimed and check the device before the new start; end orphans; a separate owner of the memory makes it immediate",
    "process": "imports and configuration: keep a warmed process in reserve, keep the image and bytecode caches on local disk, leave out plugins that are not needed",
    "device": "device and communication set-up: a P2P check whose result is cached, fewer ranks per process, a standby that has its context already",
    "weights": "weights from host memory or local NVMe instead of the network (tens of seconds to minutes from disk, seconds from pinned memory); parallel or sharded "
    "loaders; a memory owner that keeps them on the device",
    "compile": "keep the compile cache (VLLM_CACHE_ROOT, Inductor) on a volume that outlives the container, and ship it with the image; compile fewer ranges",
    "kv_pool": "profile run and pool: give the size of the pool instead of measuring it, keep its share at about 70 % of the card, reserve without initialising",
    "graphs": "capture fewer batch sizes, or none while traffic waits (enforce eager, then switch); restore captured graphs from a snapshot",
    "api_up": "what runs between engine and API (tokenizers, chat templates, plugins) can be loaded while the weights are",
    "ready": "the warm-up request of the engine: shorten it, or let the router begin with a small share meanwhile",
    "traffic_switched": "after ready: switch on ready, not on the end of a graceful drain, and measure the chain end to end",
    "warm": "after ready: warm-up requests with the usual prefixes before traffic, then admit gradually",
    "unattributed": "nothing in the logs covers the largest part: imports, image pulls and supervisors' delays write no line; give journal and router logs, or log at DEBUG",
}  # fmt: skip
IN_PLACE = "recover in place: cheap, but how long it is interrupted cannot be controlled; with a single instance queue briefly, or refuse with a retry hint"
STANDBY = "standby first, then switch: for core services; on a card of its own, and the same way serves canary upgrades"
READMIT = "admit about 30 % first, watch memory and latency for some seconds, then open: the whole backlog at once is how the second OOM comes"
SECOND_LOOK = "little memory in use right after a recovery means nothing, the pool is empty: look again after the first peak of traffic"
LONG_S = 60.0
"""An outage for which a standby is worth its card."""


def longest_after(switched_s: float | None, warm_s: float | None, *, unasked: bool) -> tuple[str, float] | None:
    """What took longest after ready, and how long: the router, or the cache from the first user on. Both are counted from ready; None = nothing is known of it.

    `unasked`: no user came before the first one who was served, so that nobody waited for a router.
    """
    known = [] if switched_s is None or unasked else [("traffic_switched", switched_s)]
    if warm_s is not None and warm_s - (switched_s or 0.0) > 0:
        known.append(("warm", warm_s - (switched_s or 0.0)))
    return max(known, key=lambda item: item[1], default=None)


def advice(bottleneck: str | None, bottleneck_s: float | None, mttr_s: float | None, queue_peak: int | None, cause: str, after: tuple[str, float] | None = None) -> list[str]:
    """In the order in which to read them: what took longest first, before ready or `after` it."""
    longest = after[0] if after is not None and after[1] > (bottleneck_s or 0.0) else bottleneck
    found = [OF_STAGE[longest]] if longest is not None else []
    if cause == "external-stop":
        found.append("nothing was wrong with the engine: find out who stopped it, and drain before a stop")
    found.append(STANDBY if mttr_s is not None and mttr_s > LONG_S else IN_PLACE)
    if queue_peak:
        found.append(READMIT)
    return [*found, SECOND_LOOK]
