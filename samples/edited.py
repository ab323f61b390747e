"""Writes look-alikes of recorded samples that differ from them in one fact; nothing has to run for it.

    python samples/edited.py [SAMPLE…]     # after the samples that they are made of were recorded anew
"""

import hashlib
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Files = dict[str, str]
"""Path in the bundle (or folder) -> text."""
WHEN = (2026, 11, 30, 9, 0, 0)


def read(sample: str) -> Files:
    """A recorded bundle, or a folder of loose files."""
    bundle = HERE / f"{sample}.zip"
    if bundle.exists():
        with zipfile.ZipFile(bundle) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}
    return {path.name: path.read_text() for path in sorted((HERE / sample).iterdir())}


def write(sample: str, files: Files) -> None:
    """A bundle with a manifest that fits, or a folder."""
    if "manifest.json" not in files:
        (HERE / sample).mkdir(exist_ok=True)
        for name, text in files.items():
            (HERE / sample / name).write_text(text)
        return
    manifest = json.loads(files["manifest.json"])
    redactions = {entry["path"]: entry["redactions"] for entry in manifest["artefacts"]}
    manifest["artefacts"] = [
        {
            "path": name, "sha256": hashlib.sha256(text.encode()).hexdigest(), "bytes": len(text.encode()), "collector": name.split("/")[1],
            "redactions": redactions.get(name, 0),
        }
        for name, text in files.items()
        if name != "manifest.json"
    ]  # fmt: skip
    with zipfile.ZipFile(HERE / f"{sample}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**files, "manifest.json": json.dumps(manifest, indent=1)}.items():
            archive.writestr(zipfile.ZipInfo(name, WHEN), text, zipfile.ZIP_DEFLATED)


def named(files: Files, words: str) -> list[str]:
    """Artefacts with this in their path, in order."""
    return sorted(name for name in files if words in name)


def dumps(files: Files) -> list[str]:
    """The stacks, one name per sample."""
    return [name for name in named(files, "/stacks/") if not name.endswith("dumps.jsonl")]


def change_stacks(files: Files, change: Callable[[int, dict[str, Any]], None], names: list[str] | None = None) -> None:
    """Call `change(sample, thread)` for each thread of each dump."""
    for sample, name in enumerate(names or dumps(files)):
        dump = json.loads(files[name])
        for thread in dump["threads"] if isinstance(dump, dict) else dump:
            change(sample, thread)
        files[name] = json.dumps(dump, separators=(",", ":"))


def change_lines(files: Files, words: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """JSON lines of these artefacts, each changed, or left out."""
    for name in named(files, words):
        lines = [change(json.loads(line)) for line in files[name].splitlines()]
        files[name] = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines if line is not None)


def keep_dumps(files: Files, *kept: int) -> None:
    """Only these samples of the stacks were taken."""
    for sample, name in enumerate(dumps(files)):
        if sample not in kept:
            del files[name]
    change_lines(files, "/stacks/dumps.jsonl", lambda line: line if line.get("sample") in (None, *kept) else None)


def answered(files: Files) -> None:
    """The ports answer."""
    change_lines(files, "/metrics/probes-", lambda line: {**line, "outcome": "answer", "status": 404, "seconds": 0.01} if "url" in line else line)


def one_read(files: Files) -> None:
    """The ports were asked once."""
    del files[named(files, "/metrics/probes-")[-1]]


# --- ghost-key-retry-loop: two workers, each retries on a key of its own ---


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


# --- the other records: functions of the files ---


def changed(sample: str, *changes: Callable[[Files], None]) -> Callable[[], Files]:
    def make() -> Files:
        files = read(sample)
        for change in changes:
            change(files)
        return files

    return make


def torn(files: Files) -> None:
    """One stack was read while it changed: all but its innermost functions are missing."""

    def change(sample: int, thread: dict[str, Any]) -> None:
        if sample == 2:
            thread.update(torn=True, frames=thread["frames"][:3])

    change_stacks(files, change)


def metrics_elsewhere(files: Files) -> None:
    """A port of its own answers for /metrics, and the tokens there go up."""
    for read, name in enumerate(named(files, "/metrics/probes-")):
        last = json.loads(files[name].splitlines()[-1])
        place = {"target": "127.0.0.1:9100", "url": "http://127.0.0.1:9100/metrics", "outcome": "answer", "status": 200, "seconds": 0.01}
        files[name] += json.dumps({**last, **place}, separators=(",", ":")) + "\n"
        files[f"artefacts/metrics/9100-metrics-{read}.txt"] = (
            f"# llmdiag read={read} ts={last['ts']:.3f} status=200 seconds=0.0100\n# llmdiag url=http://127.0.0.1:9100/metrics\n"
            f'vllm:num_requests_running{{engine="0"}} 1\nvllm:generation_tokens_total{{engine="0"}} {1000 + 90 * read}\n'
        )


def backlog_shrinks(files: Files) -> None:
    """Somebody else accepts from the same socket."""
    first, second = named(files, "/sockets/sockets-")
    for name, waiting in ((first, 12), (second, 9)):
        change_lines(files, name, lambda line, waiting=waiting: {**line, "recv_q": waiting} if line.get("state") == "LISTEN" else line)


def of_thread(name: str, change: Callable[[int, dict[str, Any]], None]) -> Callable[[Files], None]:
    """Change one thread in all dumps."""

    def apply(files: Files) -> None:
        names = dumps(files) or [name for name in sorted(files) if name.endswith(".json")]
        change_stacks(files, lambda sample, thread: change(sample, thread) if thread["thread_name"].startswith(name) else None, names)

    return apply


def moves(sample: int, thread: dict[str, Any]) -> None:
    """At another line each time."""
    thread["frames"][0]["line"] += sample


def computes(sample: int, thread: dict[str, Any]) -> None:
    """On a processor, in C that has let go of the lock."""
    thread["active"] = True


def reads_shared_memory(sample: int, thread: dict[str, Any]) -> None:
    """Where vLLM's workers wait for their next order."""
    queue, executor = "vllm/distributed/device_communicators/shm_broadcast.py", "vllm/v1/executor/multiproc_executor.py"
    waits = (("acquire_read", queue, 584), ("dequeue", queue, 660), ("worker_busy_loop", executor, 812))
    thread["frames"][:2] = [{**thread["frames"][0], "name": name, "filename": file, "short_filename": file, "line": line} for name, file, line in waits]


def native_thread(files: Files) -> None:
    """The request's thread is one of C++ that polls a socket."""
    for name in dumps(files):
        dump = json.loads(files[name])
        gone = [thread["os_thread_id"] for thread in dump["threads"] if thread["thread_name"].startswith("Thread-2")]
        dump["threads"] = [thread for thread in dump["threads"] if thread["os_thread_id"] not in gone]
        files[name] = json.dumps(dump, separators=(",", ":"))
        polls = {"wchan": "do_sys_poll", "syscall": "7 0x7fe7c0de89c0 0x1 0x5 0x0 0x0 0x0 0x7fe7c0de8890 0x7fe7c2c4bf16"}
        change_lines(files, "/threads/tasks-", lambda line, gone=gone, polls=polls: {**line, **polls} if line.get("tid") in gone else line)


def somebody_holds_it(files: Files) -> None:
    """A thread that works holds the lock, as text dumps do tell."""
    for name, text in files.items():
        files[name] = text.replace('Thread 51901 (idle)', 'Thread 51901 (active+gil)')


EDITS: Mapping[str, Callable[[], Files]] = {
    **{
        f"ghost-key-retry-loop/{make.__name__.replace('_', '-')}": make
        for make in (
            both_went_back, one_went_back, keys_sound, one_key_sound, sound_and_went_back, keys_unknown, keys_soft, keys_gone, keys_cut, other_text, plain_keys,
            small_values, two_dumps,
        )
    },
    "cpu-spin/answers": changed("cpu-spin/incident", answered),
    "cpu-spin/asked-once": changed("cpu-spin/incident", one_read),
    "cpu-spin/metrics-elsewhere": changed("cpu-spin/incident", metrics_elsewhere),
    "cpu-spin/two-dumps": changed("cpu-spin/incident", lambda files: keep_dumps(files, 0, 4)),
    "gil-held-in-native-call/holder-moves": changed("gil-held-in-native-call/incident", of_thread("reaper", moves)),
    "gil-held-in-native-call/native-thread": changed("gil-held-in-native-call/incident", native_thread),
    "gil-held-in-native-call/json-dumps-lookup-moves": changed("gil-held-in-native-call/json-dumps", of_thread("lookup_0", moves)),
    "gil-held-in-native-call/json-dumps-lookup-computes": changed("gil-held-in-native-call/json-dumps", of_thread("lookup_0", computes)),
    "gil-held-in-native-call/json-dumps-lookup-waits": changed("gil-held-in-native-call/json-dumps", of_thread("lookup_0", reads_shared_memory)),
    "gil-held-in-native-call/text-dumps-gil-held": changed("gil-held-in-native-call/text-dumps", somebody_holds_it),
    "event-loop-blocked/answers": changed("event-loop-blocked/incident", answered),
    "event-loop-blocked/asked-once": changed("event-loop-blocked/incident", one_read),
    "event-loop-blocked/two-dumps": changed("event-loop-blocked/incident", lambda files: keep_dumps(files, 0, 4)),
    "event-loop-blocked/torn-stack": changed("event-loop-blocked/incident", torn),
    "event-loop-blocked/backlog-shrinks": changed("event-loop-blocked/incident", backlog_shrinks),
}  # fmt: skip


def chosen(names: list[str]) -> Iterator[str]:
    yield from names or EDITS


def main() -> None:
    for sample in chosen(sys.argv[1:]):
        write(sample, EDITS[sample]())
        print(sample)


if __name__ == "__main__":
    main()
