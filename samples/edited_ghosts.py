"""The incident of ghost-key-retry-loop with one fact changed: two workers, each of which retries on a key of its own."""

import json
from collections.abc import Callable
from typing import Any

from edits import Files, change_stacks, dumps, keep_dumps, named, read


class Ghosts:
    """The incident, with fewer sound keys, and how to change what its workers hold."""

    def __init__(self) -> None:
        self.files = read("ghost-key-retry-loop/incident")
        (place,) = named(self.files, "/redis/keys-")
        self.rows = [json.loads(line) for line in self.files[place].splitlines()][:32]
        self.ghosts = [row for row in self.rows if row["verdict"] == "ghost"]
        self.keys = [row["key"] for row in self.ghosts]
        self._place = place
        locals_of = json.loads(self.files[dumps(self.files)[1]])["threads"]
        self.holds = {
            thread["thread_name"]: key for thread in locals_of for key in self.keys
            if any(var["repr"] == f'"{key}"' for frame in thread["frames"] for var in frame.get("locals") or ())
        }  # fmt: skip

    def row(self, worker: str) -> dict[str, Any]:
        """What the cache has under the key of this worker."""
        return next(row for row in self.ghosts if row["key"] == self.holds[worker])

    def sound(self, worker: str) -> None:
        like = next(row for row in self.rows if row["verdict"] == "ok")
        self.row(worker).update({name: value for name, value in like.items() if name not in ("key", "key_hex")})

    def soft(self, worker: str) -> None:
        self.sound(worker)
        self.row(worker).update(verdict="soft", reasons="norm-outlier")

    def goes_back(self, *workers: str) -> None:
        """In the middle sample these wait for work."""
        queue = {"name": "Queue.get", "filename": "/usr/local/lib/python3.11/queue.py", "short_filename": "queue.py", "line": 171}

        def change(sample: int, thread: dict[str, Any]) -> None:
            if sample == 2 and thread["thread_name"] in workers:
                frames = thread["frames"]
                below = next(at for at, frame in enumerate(frames) if frame["name"] == "Worker._serve")
                thread["frames"] = [queue, *frames[below:]]

        change_stacks(self.files, change)

    def holds_text(self, worker: str, text: str, frames: tuple[str, ...], var: str = "key") -> None:
        """This text is in a variable of these functions; a cache key is in none."""

        def change(sample: int, thread: dict[str, Any]) -> None:
            if thread["thread_name"] != worker or sample not in (1, 4):
                return
            for frame in thread["frames"]:
                frame["locals"] = [{"name": var, "addr": 1, "arg": True, "repr": f'"{text}"'}] if frame["name"] in frames else []

        change_stacks(self.files, change)

    def tokens(self, before: int, after: int, running: int = 2) -> None:
        """The engine counts tokens too, and so many requests run."""
        for name, count in zip(named(self.files, "-metrics-"), (before, after), strict=True):
            text = self.files[name].replace('model_name="clip-vit-b-32"} 2', f'model_name="clip-vit-b-32"}} {running}')
            self.files[name] = f'{text}vllm:generation_tokens_total{{engine="0",model_name="clip-vit-b-32"}} {count}\n'

    def add(self, key: str, **like: Any) -> None:
        """One more entry of the cache."""
        self.rows.append({**self.ghosts[0], "key": key, "key_hex": key.encode().hex(), **like})

    def done(self) -> Files:
        self.files[self._place] = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in self.rows)
        return self.files


FIRST, SECOND = "worker-1", "worker-0"
LAB_FRAMES = ("EncodingCache.get", "Service._encode_image", "Service.answer")
UNUSED = "clip-vit-b-32:image:00000000000000000000000000000000"


def both_went_back() -> Files:
    """Both workers wait for work in between."""
    made = Ghosts()
    made.goes_back(FIRST, SECOND)
    return made.done()


def one_went_back() -> Files:
    """One of them does; neither key was asked for lately, and no token is made."""
    made = Ghosts()
    made.tokens(4100, 4100)
    made.goes_back(SECOND)
    for worker in (FIRST, SECOND):
        made.row(worker)["idle_s"] = 30.0
    return made.done()


def keys_sound() -> Files:
    """Both keys are sound; a ghost that nobody holds is in the cache."""
    made = Ghosts()
    made.add(UNUSED)
    made.sound(FIRST)
    made.sound(SECOND)
    return made.done()


def one_key_sound() -> Files:
    """One key is sound, and the engine makes tokens for others."""
    made = Ghosts()
    made.tokens(4100, 4900)
    made.sound(SECOND)
    return made.done()


def sound_and_went_back() -> Files:
    """One worker holds a sound key, the one with the ghost went back to its queue."""
    made = Ghosts()
    made.sound(FIRST)
    made.goes_back(SECOND)
    return made.done()


def keys_unknown() -> Files:
    """A family of two keys: nothing tells what they should be."""
    made = Ghosts()
    for worker in (FIRST, SECOND):
        made.row(worker).update(verdict="unknown", reasons="")
    return made.done()


def keys_soft() -> Files:
    """Vectors that are only far longer than usual; one worker went back to its queue."""
    made = Ghosts()
    made.soft(FIRST)
    made.soft(SECOND)
    made.goes_back(SECOND)
    return made.done()


def keys_gone() -> Files:
    """The keys have been deleted; a copy is in the workers' memory."""
    made = Ghosts()
    made.rows = [row for row in made.rows if row["verdict"] != "ghost"]
    return made.done()


def keys_cut() -> Files:
    """Of long keys the stacks show the beginning, and that is the name of another entry, which is a ghost, or soft."""
    made = Ghosts()
    for worker, verdict in ((FIRST, "ghost"), (SECOND, "soft")):
        begin = f"page:https://shop.example/{worker}/".ljust(123, "x")
        made.row(worker).update(key=begin, key_hex=begin.encode().hex(), verdict=verdict)
        made.add(f"{begin}/front.png", verdict="ok", reasons="")
        made.holds_text(worker, f"{begin}...", LAB_FRAMES)
    made.add(UNUSED)
    return made.done()


def other_text() -> Files:
    """What they hold is the name of a queue, no entry of the cache."""
    made = Ghosts()
    for worker in (FIRST, SECOND):
        made.holds_text(worker, "jobs:images:high", ("Worker._serve",), var="queue")
    return made.done()


def plain_keys() -> Files:
    """Keys without a digest, that no function of the cache client shows."""
    made = Ghosts()
    for number, worker in enumerate((FIRST, SECOND)):
        key = f"catalog:item-{number}:vector"
        made.row(worker).update(key=key, key_hex=key.encode().hex())
        made.holds_text(worker, key, LAB_FRAMES)
    return made.done()


def small_values() -> Files:
    """A number of four bytes that was not asked for lately, and nobody's request."""
    made = Ghosts()
    for worker in (FIRST, SECOND):
        made.row(worker).update(bytes=4, idle_s=30.0)
    made.tokens(4100, 4100, running=0)
    return made.done()


def two_dumps() -> Files:
    """Only two stacks could be taken."""
    made = Ghosts()
    keep_dumps(made.files, 1, 4)
    return made.done()


EDITS: tuple[Callable[[], Files], ...] = (
    both_went_back, one_went_back, keys_sound, one_key_sound, sound_and_went_back, keys_unknown, keys_soft, keys_gone, keys_cut, other_text, plain_keys,
    small_values, two_dumps,
)  # fmt: skip
