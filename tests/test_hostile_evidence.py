"""Evidence that was made to hurt: `llmdiag analyze` as a process never crashes, hangs, follows, executes or fills the memory."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diag import bundle_reader
from diag.parsers import prometheus
from tests.conftest import ROOT, SAMPLES
from tests.warm import WARM

MEMORY_BYTES = 4 << 30
TRAP_BYTES = 1 << 30
DEADLINE_S = 180.0
INCIDENT = SAMPLES / "ghost-key-retry-loop" / "incident.zip"
METRICS = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 1.0\n'
LOG = "INFO 11-30 03:05:52 [launcher.py:254] Available routes are:\n" * 5
CHILD = """
import resource, sys
memory = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
from diag.cli import main
main()
"""
# root that may not read what its owner may not read
PLAIN_USER = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.getuid() == 0 else ()


@dataclass(frozen=True)
class Said:
    """What one call left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def status(self, table: str) -> set[str]:
        return {item["status"] for item in self.json["collected"] if item["table_name"] == table}


def llmdiag(*args: str | bytes | Path, prefix: Sequence[str] = (), memory_bytes: int = MEMORY_BYTES) -> Said:
    """`llmdiag ARGS` with 4 GiB of address space; whatever the evidence, it ends well."""
    said = as_another(prefix, *args) if prefix else Said(**vars(WARM.call(args, memory_bytes=memory_bytes, deadline_s=DEADLINE_S)))
    assert "Traceback" not in said.err, said.err
    assert said.code in (0, 1, 2, 3), (said.code, said.err)
    assert (said.code == 2) == said.err.startswith(("error: ", "Usage: ")), (said.code, said.err)
    assert not {"\x1b", "\u202e", "\x00", "\x07"} & set(said.out + said.err)
    return said


def as_another(prefix: Sequence[str], *args: str | bytes | Path) -> Said:
    """The same behind a command that takes rights away."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", CHILD, str(MEMORY_BYTES), *args], capture_output=True, check=False, timeout=DEADLINE_S, stdin=subprocess.PIPE,
        env={**os.environ, "LLMDIAG_STRICT": "1", "PYTHONPATH": str(ROOT)},
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def analyze(*paths: str | bytes | Path, prefix: Sequence[str] = (), memory_bytes: int = MEMORY_BYTES) -> Said:
    """`llmdiag analyze PATHS -f json`; what is no error is a diagnosis."""
    said = llmdiag("analyze", *paths, "-f", "json", prefix=prefix, memory_bytes=memory_bytes)
    if said.code != 2:
        assert said.json["schema"] == "llmdiag.diagnosis/1"
    return said


# ---- what is not there, and what is no evidence


def test_an_empty_folder_is_not_a_healthy_service(tmp_path: Path) -> None:
    said = analyze(tmp_path)
    assert (said.code, said.json["verdict"]) == (3, "inconclusive")
    assert "nothing could be looked at: there is no file in it" in said.err


def test_what_is_not_recognised_is_named(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8\xff" + bytes(100))
    (tmp_path / "notes.txt").write_text("call Bob")
    said = analyze(tmp_path)
    assert said.code == 3
    assert "not recognised: holiday.jpg, notes.txt" in said.err
    assert said.json["subject"]["unrecognised"] == ["holiday.jpg", "notes.txt"]


@pytest.mark.parametrize("name", ["missing", "missing.zip", "n" * 300, "p/" * 3000, "new\nline", b"\xff\xfe", "esc\x1b[31m"])
def test_a_path_that_does_not_exist(tmp_path: Path, name: str | bytes) -> None:
    said = analyze(os.fsencode(tmp_path) + b"/" + os.fsencode(name))
    assert said.code == 2
    assert "no such file or folder" in said.err


def test_nothing_given() -> None:
    assert llmdiag("analyze").code == 2


# ---- traps of the file system


def traps(folder: Path) -> None:
    """Everything a folder can hold that is not a plain readable file, beside one piece of honest evidence."""
    (folder / "metrics1.txt").write_text(METRICS)
    (folder / "passwd.log").symlink_to("/etc/passwd")
    (folder / "etc").symlink_to("/etc")
    (folder / "loop").symlink_to(folder)
    (folder / "dangling").symlink_to("/no/such/file")
    os.mkfifo(folder / "server.log")
    os.mkfifo(folder / "manifest.jsonl")
    with socket.socket(socket.AF_UNIX) as unix, contextlib.chdir(folder):
        unix.bind("s")
    with (folder / "huge.log").open("wb") as sparse:
        sparse.write(LOG.encode())
        sparse.truncate(TRAP_BYTES)
    with (folder / "huge.json").open("wb") as sparse:
        sparse.write(b'{"artefact":"stacks"')
        sparse.truncate(TRAP_BYTES)
    (folder / "hole").write_bytes(b"")
    os.truncate(folder / "hole", TRAP_BYTES)
    for name in ("new\nline.txt", "esc\x1b[31m.txt", "\u202egpj.exe", "n" * 250, "'; DROP TABLE threads; --", "-f", "$(reboot)", "{pid}"):
        (folder / name).write_text(METRICS)
    Path(os.fsdecode(os.fsencode(folder) + b"/no-utf-8-\xff\xfe.txt")).write_text(METRICS)
    deep = folder
    with contextlib.suppress(OSError):
        for _ in range(400):  # deeper, and the test runner cannot remove it again
            deep = deep / "d"
            deep.mkdir()
    assert len(deep.parts) > 400


def test_a_folder_full_of_traps(tmp_path: Path) -> None:
    """In half of the memory that the others have: a file that is read whole does not fit into it."""
    traps(tmp_path)
    said = analyze(tmp_path, memory_bytes=MEMORY_BYTES // 2)
    assert said.code in (0, 3)
    assert "root:" not in said.out
    unrecognised = said.json["subject"]["unrecognised"]
    assert {name for name in unrecognised if name.endswith("(a link, not followed)")} >= {
        "passwd.log (a link, not followed)", "etc (a link, not followed)", "loop (a link, not followed)", "dangling (a link, not followed)",
    }
    assert {"server.log (not a regular file)", "s (not a regular file)", "hole"} <= set(unrecognised)
    assert any("huge.json" in (item["reason"] or "") for item in said.json["collected"] if item["collector"] == "stacks")
    os.truncate(tmp_path / "huge.log", 64 << 20)  # it was read and is read again by name; what follows is about the rest
    rows = llmdiag("query", tmp_path, "SELECT DISTINCT source FROM metrics ORDER BY source", "-f", "json").json["rows"]
    assert {"metrics1.txt:2", "new\\nline.txt:2", "esc\\x1b[31m.txt:2", "no-utf-8-\\xff\\xfe.txt:2"} <= {row["source"] for row in rows}
    for form in ("text", "md"):
        assert llmdiag("report", tmp_path, "-f", form).code in (0, 3)


def test_traps_given_by_name(tmp_path: Path) -> None:
    traps(tmp_path)
    os.truncate(tmp_path / "huge.log", 64 << 20)  # read by name or from its folder, it is the same reading: there it is as long as it can be
    for name, code in (("server.log", 2), ("s", 2), ("dangling", 2), ("passwd.log", 3), ("hole", 3), ("huge.log", 0), ("huge.json", 3)):
        said = analyze(tmp_path / name)
        assert said.code in (code, 3), (name, said)
        assert said.code != 2 or "cannot read" in said.err
        assert "root:" not in said.out
    assert analyze("/dev/zero").code == 2
    assert analyze("/dev/stdin").code == 2


def test_a_folder_that_is_half_the_disk(tmp_path: Path) -> None:
    for number in range(20_010):
        (tmp_path / str(number)).touch()
    said = analyze(tmp_path)
    assert said.code == 2
    assert "more than 20000 files" in said.err


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics1.txt").write_text(METRICS)
    (tmp_path / "server.log").write_text(LOG)
    (tmp_path / "server.log").chmod(0)
    (tmp_path / "b.zip").write_bytes(INCIDENT.read_bytes())
    (tmp_path / "b.zip").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    for name in ("server.log", "b.zip", "closed/x"):
        said = analyze(tmp_path / name, prefix=PLAIN_USER)
        assert said.code == 2, name
        assert "Permission denied" in said.err or "no such file" in said.err
    said = analyze(tmp_path, prefix=PLAIN_USER)
    assert said.status("metrics") == {"ok"}
    assert {"server.log (Permission denied)", "b.zip (Permission denied)", "closed (Permission denied)"} <= set(said.json["subject"]["unrecognised"])


# ---- junk that is called like evidence


def artefacts() -> dict[str, bytes]:
    """Path below `artefacts/` -> content, of a real incident."""
    return {artefact.path: artefact.bytes() for artefact in bundle_reader.read(INCIDENT).artefacts}


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


JUNK: Mapping[str, Callable[[bytes], bytes]] = {
    "random bytes": lambda data: noise(4096),
    "a right beginning": lambda data: data[:40] + noise(4096),
    "cut": lambda data: data[: len(data) * 2 // 3],
    "one line twice and one cut": lambda data: data + data[: len(data) // 2],
    "NUL bytes": lambda data: data.replace(b",", b"\0,\0"),
    "no number is one": lambda data: b"".join(b"NaN" if chr(byte).isdigit() else bytes([byte]) for byte in data),
    "infinity": lambda data: data.replace(b":1", b":Infinity").replace(b":2", b":-Infinity").replace(b":3", b":1e999"),
    "huge numbers": lambda data: data.replace(b":1", b":" + b"9" * 400).replace(b":2", b":-9223372036854775809").replace(b":4", b":18446744073709551616"),
    "nested": lambda data: data.partition(b"\n")[0] + b"\n" + b"[" * 100_000 + b"]" * 100_000 + b"\n" + b'{"a":' * 100_000,
    "null": lambda data: data.replace(b'"', b"").replace(b"{", b"null\n"),
    "UTF-16": lambda data: data.decode("utf-8").encode("utf-16"),
    "other types": lambda data: data.replace(b":[", b':{"a":').replace(b"]", b"}").replace(b':"', b':[1],"'),
    "line ends": lambda data: data.replace(b"\n", b"\r\r\n\n"),
    "escapes": lambda data: data.replace(b'"S"', b'"\\u001b[31m\\u202e"').replace(b"python", b"\\u001b]0;owned\\u0007"),
    "lone surrogates": lambda data: data.replace(b'"S"', b'"\\ud800"').replace(b"MainThread", b"\\udfff\xed\xa0\x80"),
}


@pytest.mark.parametrize("kind", JUNK)
def test_junk_named_like_evidence(tmp_path: Path, kind: str) -> None:
    """The same junk as loose files, and in a bundle where every digest is right."""
    damaged = {path: JUNK[kind](data) for path, data in artefacts().items()}
    for path, data in damaged.items():
        place = tmp_path / "loose" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    assert analyze(tmp_path / "loose", forged(tmp_path / "b.zip", damaged)).code in (0, 1, 3)


BOMBS: Mapping[str, bytes] = {
    "stacks/1-00.json": b'{"artefact":"stacks","read":0,"ts":1,"tool":"py-spy","pid":1,"threads":[{"thread_name":"' + b"x" * (20 << 20) + b'"}]}',
    "stacks/2-00.json": b'{"artefact":"stacks"' + b"[" * 100_000,
    "stacks/3-00.json": b'{"artefact":"stacks","read":0,"ts":1,"tool":"py-spy","pid":3,"threads":[' + b",".join(
        b'{"thread_id":%d,"thread_name":"t","os_thread_id":%d,"active":false,"owns_gil":false,"frames":[]}' % (n, n) for n in range(100_000)) + b"]}",
    "processes/processes-0.jsonl": b'{"artefact":"processes","read":0,"ts":1,"target":1,"root":1}\n' + b"".join(
        b'{"pid":%d,"ppid":%d,"comm":"%s"}\n' % (n, n + 1, b"y" * 900) for n in range(20_000)),
    "metrics/8000-metrics-0.txt": b"# llmdiag read=0 ts=1 status=200 seconds=0.1\n# llmdiag url=http://h:1/metrics\n# TYPE a gauge\n" + b"a{b=\"" + b"z" * (20 << 20) + b'"} 1\n',
    "host/dmesg.txt": b"2026-11-30T06:03:16,292389+00:00 Out of memory: " + b"k" * (20 << 20),
    "redis/keys-0.jsonl": b'{"target":"t","key":"' + b"k" * (20 << 20) + b'","key_hex":"00","verdict":"ghost","reasons":""}\n',
}


def test_bombs(tmp_path: Path) -> None:
    for path, data in BOMBS.items():
        place = tmp_path / "loose" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    assert analyze(tmp_path / "loose", forged(tmp_path / "b.zip", BOMBS)).code in (0, 1, 3)


def test_a_log_with_a_line_of_50_mb(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(LOG.encode() + b"ERROR 11-30 03:05:53 [core.py:1] " + b"x" * (50 << 20) + b"\n" + b"ERROR 11-30 03:05:54 [core.py:2] after it\n")
    rows = llmdiag("query", tmp_path, "SELECT line, length(message) AS n FROM log_events WHERE level = 'ERROR' ORDER BY line", "-f", "json").json["rows"]
    assert [row["line"] for row in rows] == [6, 7]
    assert rows[0]["n"] < 10_000


def test_metrics_of_more_than_is_read(tmp_path: Path) -> None:
    """A quarter of a million lines, in half of the memory that the others have."""
    with (tmp_path / "metrics1.txt").open("w") as out:
        out.write("# TYPE a gauge\n")
        out.writelines(f"a{{n=\"{number:0120}\"}} {number}\n" for number in range(260_000))
    assert (tmp_path / "metrics1.txt").stat().st_size > prometheus.MAX_BYTES
    said = llmdiag("analyze", tmp_path, "-f", "json", memory_bytes=MEMORY_BYTES // 2)
    assert said.code in (0, 3)
    assert said.status("metrics") == {"partial"}


# ---- nothing is ever executed


class Canary:
    """A pickle that touches a file when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (os.mkdir, (str(self.place),))


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    canary = tmp_path / "touched"
    pickled = [pickle.dumps(Canary(canary), protocol=protocol) for protocol in (0, 2, 5)]
    pickle.loads(pickled[0])
    assert canary.exists()  # it works
    canary.rmdir()
    folder = tmp_path / "loose"
    folder.mkdir()
    named = [*(path.rpartition("/")[2] for path in artefacts()), "dump.pkl", "metrics1.txt", "server.log", "ps.txt", "x.npy", "x.pt"]
    for number, data in enumerate(pickled):
        for name in named:
            (folder / f"{number}-{name}").write_bytes(data)
    analyze(folder)
    analyze(forged(tmp_path / "b.zip", {path: pickled[-1] for path in artefacts()}))
    assert not canary.exists()


def test_text_of_the_evidence_is_never_a_command_or_a_template(tmp_path: Path) -> None:
    """Braces, shell and SQL in every name of a real incident: reports show them, nothing else happens."""
    canary = tmp_path / "touched"
    evil = f"{{0.__class__}} {{{{7*7}}}} {{% for x in y %}} $(mkdir {canary}) `mkdir {canary}` '; DROP TABLE threads; -- \x1b[2J".replace("\x1b", "\\u001b")
    damaged = {path: data.replace(b"MainThread", evil.encode()).replace(b"python", evil.encode()[:40]) for path, data in artefacts().items()}
    bundle = forged(tmp_path / "b.zip", damaged)
    for form in ("text", "md", "json"):
        said = llmdiag("report", bundle, "-f", form)
        assert said.code in (0, 1, 3)
        assert "49" not in said.out.replace("16573", "") or "{{7*7}}" in said.out
    assert not canary.exists()


# ---- forged bundles


def manifest(contents: Mapping[str, bytes], **changed: object) -> dict[str, object]:
    """The manifest of the incident, with artefacts of our own and every digest right."""
    with zipfile.ZipFile(INCIDENT) as packed:
        found: dict[str, object] = json.loads(packed.read("manifest.json"))
    found["artefacts"] = [
        {"path": f"artefacts/{path}", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "collector": path.partition("/")[0], "redactions": 0}
        for path, data in contents.items()
    ]
    return found | changed


def forged(place: Path, contents: Mapping[str, bytes], text: bytes | None = None, **changed: object) -> Path:
    with zipfile.ZipFile(place, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr("manifest.json", text if text is not None else json.dumps(manifest(contents, **changed)))
        for path, data in contents.items():
            packed.writestr(f"artefacts/{path}", data)
    return place


def entry(path: str, collector: str = "threads", size: int = 1, digest: str = hashlib.sha256(b"x").hexdigest()) -> dict[str, object]:
    return {"path": path, "sha256": digest, "bytes": size, "collector": collector, "redactions": 0}


RUN = {"status": "ok", "seconds": 0.1, "reason": None, "feeds": ["threads"], "notes": []}
NOTE = {"table_name": "threads", "status": "failed", "reason": "r"}
MANIFESTS: Sequence[tuple[str, int | None, dict[str, object]]] = [
    # (what, exit code or None for any but 2, changed fields)
    ("collectors that do not exist", None, {"collectors": {"no-such": RUN, "": RUN, "../x": RUN, "\x1b[31m": RUN}}),
    ("no collectors", None, {"collectors": {}}),
    ("feeds of tables that do not exist", None, {"collectors": {"threads": {**RUN, "feeds": ["no", "such"]}}}),
    ("a note about a table that does not exist", None, {"collectors": {"threads": {**RUN, "notes": [{**NOTE, "table_name": "no.such.table"}, {**NOTE, "table_name": ""}]}}}),
    ("a status that does not exist", None, {"collectors": {"threads": {**RUN, "status": "\x1b[31mfine"}}}),
    ("notes of another type", 2, {"collectors": {"threads": {**RUN, "notes": "none"}}}),
    ("a note of another type", 2, {"collectors": {"threads": {**RUN, "notes": [1]}}}),
    ("feeds of another type", 2, {"collectors": {"threads": {**RUN, "feeds": {"threads": 1}}}}),
    ("seconds of another type", 2, {"collectors": {"threads": {**RUN, "seconds": "long"}}}),
    ("collectors of another type", 2, {"collectors": [1, 2]}),
    ("a path outside", 2, {"artefacts": [entry("../../../etc/passwd")]}),
    ("an absolute path", 2, {"artefacts": [entry("/etc/passwd")]}),
    ("a path that is not there", 2, {"artefacts": [entry("artefacts/threads/none.jsonl")]}),
    ("an artefact that is the manifest", None, {"artefacts": []}),
    ("artefacts of another type", 2, {"artefacts": "all"}),
    ("a size of another type", 2, {"artefacts": [{**entry("artefacts/threads/x"), "bytes": "1"}]}),
    ("a newer schema", 2, {"schema": "llmdiag.bundle/99"}),
    ("another schema", None, {"schema": "x"}),
    ("a time that is none", None, {"started_at": "yesterday", "finished_at": "\x1b[31m"}),
    ("a host that hurts", None, {"host": {"hostname": "\x1b[31m\u202e{0.__class__}\n" + "h" * 5000}}),
    ("a host of another type", 2, {"host": {"hostname": ["h"]}}),
    ("a target that hurts", None, {"target": {"pid": "$(reboot)", "root_pid": None}}),
    ("a target without pid", None, {"target": {}}),
    ("side effects that hurt", None, {"side_effects": {"pause_ms": "\x1b[31m", "\u202e": 1e308, "sigcont_sent": -1}}),
    ("counts that hurt", None, {"redacted": {"\x1b[31m": 2**62, "b": -5}}),
    ("dropped names that hurt", None, {"dropped": ["\x1b[31m", "../x", "\u202e"]}),
    ("huge numbers", None, {"redacted": {"a": 10**400}}),
]


@pytest.mark.parametrize(("what", "code", "changed"), MANIFESTS, ids=[what for what, _, _ in MANIFESTS])
def test_a_forged_manifest(tmp_path: Path, what: str, code: int | None, changed: dict[str, object]) -> None:
    bundle = forged(tmp_path / "b.zip", {path: data for path, data in artefacts().items() if path.startswith("threads/")}, **changed)
    said = llmdiag("report", bundle, "-f", "text")
    assert (said.code == code) if code is not None else (said.code in (0, 1, 3)), said.err
    assert "root:x" not in said.out


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"NaN", b"[" * 100_000, b'{"schema":"llmdiag.bundle/1"}', b"\xff\xfe{", b'{"a":' * 100_000, b'"' + b"x" * (20 << 20) + b'"'])
def test_a_manifest_that_is_none(tmp_path: Path, text: bytes) -> None:
    assert analyze(forged(tmp_path / "b.zip", {}, text=text)).code == 2


def test_a_bundle_of_a_newer_collector_says_what_it_does_not_know(tmp_path: Path) -> None:
    said = analyze(forged(tmp_path / "b.zip", {**artefacts(), "npu/npu.json": b"{}"}))
    assert said.code == 1
    assert said.json["subject"]["unrecognised"] == ["npu/npu.json"]


JOURNALS: Mapping[str, bytes] = {
    "empty": b"",
    "no open": b'{"event":"begin","collector":"threads"}\n',
    "no collector": b'{"event":"begin"}\n',
    "no path": b'{"event":"artefact","sha256":"x"}\n',
    "no amount": b'{"event":"side_effect","name":"pause_ms"}\n',
    "other types": b'{"event":["open"],"host":1}\n[1]\nnull\n7\n',
    "an event of another type": b'{"event":{"a":1}}\n',
    "nested": b'{"event":"open","host":' + b"[" * 100_000 + b"\n",
    "sums that overflow": b'{"event":"side_effect","name":"a","amount":1' + b"0" * 400 + b'}\n{"event":"side_effect","name":"a","amount":0.5}\n',
    "junk": noise(5000) + b"\n",
    "outside": b'{"event":"artefact","path":"../../../etc/passwd","sha256":"x","bytes":1,"collector":"threads"}\n',
    "a name that is too long": json.dumps({"event": "artefact", **entry("artefacts/" + "n" * 900)}).encode() + b"\n",
    "a fifo": json.dumps({"event": "artefact", **entry("artefacts/threads/fifo")}).encode() + b"\n",
    "a link": json.dumps({"event": "artefact", **entry("artefacts/threads/link")}).encode() + b"\n",
    "a size below zero": json.dumps({"event": "artefact", **entry("artefacts/threads/hole", size=-2)}).encode() + b"\n",
    "a size beyond all": json.dumps({"event": "artefact", **entry("artefacts/threads/hole", size=1 << 60)}).encode() + b"\n",
}


@pytest.mark.parametrize("kind", JOURNALS)
def test_an_interrupted_bundle_that_lies(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "b" / "artefacts" / "threads"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "hole").touch()
    os.truncate(folder / "hole", 3 << 30)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\x1b[31m")).touch()
    head = b'{"event":"open","schema":"llmdiag.bundle/1","tool_version":"0","host":{},"target":{"pid":1},"started_at":"t","redaction":true}\n'
    (tmp_path / "b" / "manifest.jsonl").write_bytes((b"" if kind in ("empty", "no open", "junk") else head) + JOURNALS[kind])
    said = analyze(tmp_path / "b")
    assert "root:" not in said.out
    assert said.code in (2, 3)


def test_a_finished_folder_with_a_manifest_that_is_a_trap(tmp_path: Path) -> None:
    for number, make in enumerate((
        lambda place: os.mkfifo(place), lambda place: place.symlink_to("/etc/passwd"), lambda place: place.mkdir(),
        lambda place: (place.touch(), os.truncate(place, 3 << 30)),
    )):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "manifest.json")
        assert analyze(folder).code in (2, 3)


# ---- several at once


def test_two_bundles_of_one_target_are_two_captures(tmp_path: Path) -> None:
    later = forged(tmp_path / "later.zip", artefacts(), started_at="2026-12-01T00:00:00.000000Z")
    said = analyze(INCIDENT, later)
    assert said.code == 1
    assert len(said.json["captures"]) == 2
    assert [capture["findings"][0]["rule"] for capture in said.json["captures"]] == ["ghost-key-retry-loop"] * 2


def test_one_good_bundle_and_one_that_is_none(tmp_path: Path) -> None:
    """A damaged one among several is said by name, not skipped."""
    bad = tmp_path / "bad.zip"
    bad.write_bytes(INCIDENT.read_bytes()[:3000])
    said = analyze(INCIDENT, bad)
    assert said.code == 2
    assert "bad.zip" in said.err


def test_a_bundle_and_loose_files_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "metrics1.txt").write_text(METRICS)
    (tmp_path / "junk.json").write_bytes(noise(1000))
    said = analyze(INCIDENT, tmp_path)
    assert said.code == 1
    assert said.json["subject"]["unrecognised"] == ["junk.json"]
    rows = llmdiag("query", INCIDENT, tmp_path, "SELECT DISTINCT bundle FROM metrics ORDER BY bundle", "-f", "json").json["rows"]
    assert [row["bundle"] for row in rows] == sorted(["incident", tmp_path.name])


def test_a_file_that_only_ends_in_zip(tmp_path: Path) -> None:
    for name, data in (("empty.zip", b""), ("text.zip", b"PK is not enough"), ("cut.zip", INCIDENT.read_bytes()[:2000])):
        (tmp_path / name).write_bytes(data)
        assert analyze(tmp_path / name).code in (2, 3)
    inside = io.BytesIO()
    with zipfile.ZipFile(inside, "w") as packed:
        packed.writestr("hello.txt", "world")
    (tmp_path / "other.zip").write_bytes(inside.getvalue())
    said = analyze(tmp_path / "other.zip")
    assert said.code == 2
    assert "no manifest.json" in said.err


def test_an_unpacked_bundle_and_its_artefacts_alone(tmp_path: Path) -> None:
    """The artefacts of a bundle are loose files too, whatever folder they are in."""
    with zipfile.ZipFile(INCIDENT) as packed:
        packed.extractall(tmp_path / "whole")
    assert analyze(tmp_path / "whole").json["findings"][0]["rule"] == "ghost-key-retry-loop"
    shutil.move(tmp_path / "whole" / "artefacts", tmp_path / "loose")
    said = analyze(tmp_path / "loose")
    assert said.code in (0, 1, 3)
    assert said.status("stack_frames") == {"ok"}
