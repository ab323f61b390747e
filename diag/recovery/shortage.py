"""What an engine says when device memory does not suffice: one message -> figures in bytes.

    Free memory on device cuda:0 (3.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.19 GiB). …   vLLM, since 0.9
    No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.          vLLM
    Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.7                   SGLang
    CUDA out of memory. Tried to allocate 1.71 GiB. GPU 0 has a total capacity of 22.30 GiB of which 1.52 GiB is free. Process
    162519 has 20.28 GiB memory in use. … 19.55 GiB is allocated by PyTorch, and 244.94 MiB is reserved by PyTorch but unallocated. …
"""

import re
from dataclasses import dataclass

GIB = 1 << 30
MOST_BYTES = 1 << 53
"""No device has so much: a torn or made-up line."""
UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB, "TiB": 1 << 40}
_SIZE = r"([\d.]+) (bytes?|[KMGT]iB)"
FREE = re.compile(
    r"Free memory on device(?: [a-z]+(?::(?P<gpu>\d{1,4}))?)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired "
    r"GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
)
NO_CACHE = "No available memory for the cache blocks"
POOL = re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static(?:.*?mem_fraction_static=(?P<share>[\d.]+))?")
UNEVEN = "memory capacity is unbalanced"
TRIED = re.compile(rf"out of memory\. Tried to allocate {_SIZE}")
CAPACITY = re.compile(rf"(?:GPU|XPU|NPU) (?P<gpu>\d{{0,4}}) ?has a total capaci?ty of {_SIZE} of which {_SIZE} is free")
OLD = re.compile(rf"\(GPU (?P<gpu>\d{{1,4}}); {_SIZE} total capacity; {_SIZE} already allocated; {_SIZE} free; {_SIZE} reserved in total by PyTorch\)")
OTHER = re.compile(rf"\bProcess (\d{{1,10}}) has {_SIZE} memory in use")
THIS = re.compile(rf"\bthis process has {_SIZE} memory in use")
ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
CONTEXT_BYTES = 2 * GIB
"""What a process holds at most besides what PyTorch counts: context, kernels, communication buffers."""


@dataclass(frozen=True)
class Shortage:
    """Figures of one message, in bytes; None = it does not give them.

    `form`: free-below-share | no-room-for-cache | pool-too-small | uneven | allocation
    """

    form: str
    gpu: int | None = None
    """As the engine numbers its devices, which may be from 0 on whatever card."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    wanted_bytes: int | None = None
    share: float | None = None
    own_bytes: int | None = None
    unallocated_bytes: int | None = None
    others: tuple[tuple[int, int], ...] = ()
    """(pid, bytes) of other processes on that device, as it names them."""

    @property
    def held_bytes(self) -> int | None:
        """What others than this process hold of the device; None = the message does not tell."""
        if self.total_bytes is None or self.free_bytes is None or (self.form == "allocation" and self.own_bytes is None):
            return None
        return max(0, self.total_bytes - self.free_bytes - (self.own_bytes or 0))


def parse(message: str) -> Shortage | None:
    """A message of an engine; None = it is not about device memory that does not suffice."""
    if match := FREE.search(message):
        gpu, share = match["gpu"], _number(match["share"])
        return Shortage("free-below-share", None if gpu is None else int(gpu), _gib(match["total"]), _gib(match["free"]), _gib(match["wanted"]), share)
    if NO_CACHE in message:
        return Shortage("no-room-for-cache")
    if match := POOL.search(message):
        return Shortage("pool-too-small", share=_number((match["share"] or "").rstrip(".")))
    if UNEVEN in message:
        return Shortage("uneven")
    return _allocation(message)


def _allocation(message: str) -> Shortage | None:
    """PyTorch's message of this and of older versions."""
    tried = TRIED.search(message)
    if tried is None:
        return None
    wanted = _size(*tried.groups())
    if match := OLD.search(message):
        gpu, *sizes = match.groups()
        total, allocated, free, reserved = (_size(*sizes[place : place + 2]) for place in range(0, 8, 2))
        spare = None if reserved is None or allocated is None else max(0, reserved - allocated)
        return Shortage("allocation", int(gpu), total, free, wanted, own_bytes=reserved, unallocated_bytes=spare)
    capacity = CAPACITY.search(message)
    gpu, total, free = None, None, None
    if capacity is not None:
        number, *sizes = capacity.groups()
        gpu, total, free = (int(number) if number else None), _size(*sizes[:2]), _size(*sizes[2:])
    own, allocated, spare = _found(THIS, message), _found(ALLOCATED, message), _found(UNALLOCATED, message)
    others = tuple((int(pid), size) for pid, *cells in OTHER.findall(message) if (size := _size(*cells)) is not None)
    if own is None and allocated is not None:
        own, others = _itself(others, allocated + (spare or 0))
    return Shortage("allocation", gpu, total, free, wanted, None, own, spare, others)


def _itself(others: tuple[tuple[int, int], ...], counted: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Older versions list the process itself with the others: the one that holds what it counts, and a context."""
    near = [(size - counted, pid, size) for pid, size in others if -(1 << 24) <= size - counted <= CONTEXT_BYTES]
    if not near:
        return counted, others
    _, pid, size = min(near)
    return size, tuple(other for other in others if other != (pid, size))


def _found(pattern: re.Pattern[str], message: str) -> int | None:
    match = pattern.search(message)
    return None if match is None else _size(*match.groups())


def _size(number: str, unit: str) -> int | None:
    value = _number(number)
    return None if value is None or value * UNITS[unit] >= MOST_BYTES else round(value * UNITS[unit])


def _gib(text: str) -> int | None:
    return _size(text, "GiB")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
