"""The single-file archive: where it unpacks, whom it trusts, what it refuses; and a real one in a place without network, pip and environment."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import diag
from diag import rules
from diag.archive import build, start
from tests.conftest import SAMPLES

HERE = {"name": "llmdiag-toy", "python": list(sys.version_info[:2]), "machine": os.uname().machine, "glibc": [2, 0]}
ECHO = "import json, os, sys\nprint(json.dumps({'argv': sys.argv[1:], 'prefix': sys.prefix, 'path': os.environ.get('PYTHONPATH')}))\n"
Ended = subprocess.CompletedProcess[str]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive in which nothing is llmdiag but its start: it prints what it was given."""
    monkeypatch.setattr(build, "LAUNCHER", ECHO)
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "py-spy").write_text("#!/bin/sh\n")
    return build.seal(root, tmp_path / "dist", HERE, "nothing\n", 0)


def run(archive: Path, *args: str, **env: str) -> Ended:
    """In an environment that holds nothing else."""
    return subprocess.run([sys.executable, str(archive), *args], capture_output=True, text=True, check=False, timeout=60, env={"PATH": "/usr/bin:/bin", **env})


def unpacked(parent: Path) -> Path:
    (place,) = [path for path in parent.iterdir() if path.name.startswith("llmdiag-toy-")]
    return place


def test_it_unpacks_once_into_a_private_folder_and_becomes_llmdiag(toy: Path, tmp_path: Path) -> None:
    first = run(toy, "health", "a b", XDG_CACHE_HOME=str(tmp_path / "cache"), HOME="/nowhere", PYTHONPATH="/evil", PYTHONHOME="")
    place = unpacked(tmp_path / "cache" / "llmdiag")
    assert json.loads(first.stdout) == {"argv": ["health", "a b"], "prefix": str(place), "path": None}
    assert "unpacking to" in first.stderr
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    inode = place.stat().st_ino
    second = run(toy, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (second.returncode, second.stderr) == (0, "")
    assert place.stat().st_ino == inode
    assert list(place.parent.iterdir()) == [place], "a part of it was left behind"


def test_what_a_killed_start_left_half_unpacked_goes_once_it_is_old(toy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name, age_s in ((".llmdiag-old", 7200), (".llmdiag-new", 60), ("mine", 7200)):
        (cache / name).mkdir(parents=True)
        (cache / name / "part").write_text("x")
        os.utime(cache / name, (time.time() - age_s,) * 2)
    cache.chmod(0o700)
    assert run(toy, LLMDIAG_CACHE=str(cache)).returncode == 0
    assert sorted(path.name for path in cache.iterdir() if not path.name.startswith("llmdiag-toy")) == [".llmdiag-new", "mine"]


def test_the_home_of_a_user_is_where_it_goes_without_more_words(toy: Path, tmp_path: Path) -> None:
    assert run(toy, HOME=str(tmp_path)).returncode == 0
    assert unpacked(tmp_path / ".cache" / "llmdiag").is_dir()


def test_a_home_that_cannot_be_written_leaves_the_temporary_folder(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    assert run(toy, HOME="/dev/null", TMPDIR=str(tmp_path / "t")).returncode == 0
    assert stat.S_IMODE(unpacked(tmp_path / "t").stat().st_mode) == 0o700


def test_a_place_that_a_person_named_is_the_only_one(toy: Path, tmp_path: Path) -> None:
    assert run(toy, LLMDIAG_CACHE=str(tmp_path / "mine"), HOME=str(tmp_path)).returncode == 0
    assert unpacked(tmp_path / "mine").is_dir()
    said = run(toy, LLMDIAG_CACHE="/dev/null/x", HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert said.returncode == 2
    assert said.stderr.startswith("error: there is no place to unpack to\n  /dev/null/x: Not a directory\n")
    assert "set LLMDIAG_CACHE to a folder with" in said.stderr
    assert not (tmp_path / ".cache").exists()


def test_an_exec_probe_that_cannot_start_restarts_nothing(toy: Path) -> None:
    assert run(toy, "health", "--exec-probe", LLMDIAG_CACHE="/dev/null/x").returncode == 0


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o702])
def test_a_folder_that_others_can_touch_is_not_run_from(toy: Path, tmp_path: Path, mode: int) -> None:
    run(toy, LLMDIAG_CACHE=str(tmp_path / "c"))
    place = unpacked(tmp_path / "c")
    place.chmod(mode)
    said = run(toy, LLMDIAG_CACHE=str(tmp_path / "c"))
    assert said.returncode == 2
    assert f"{place.name} in it is not a private folder (mode 0700) of this user; remove it" in said.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_run_from(toy: Path, tmp_path: Path) -> None:
    run(toy, LLMDIAG_CACHE=str(tmp_path / "c"))
    os.chown(unpacked(tmp_path / "c"), 65534, 65534)
    assert run(toy, LLMDIAG_CACHE=str(tmp_path / "c")).returncode == 2


def test_a_link_is_not_followed(toy: Path, tmp_path: Path) -> None:
    run(toy, LLMDIAG_CACHE=str(tmp_path / "c"))
    place = unpacked(tmp_path / "c")
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert run(toy, LLMDIAG_CACHE=str(tmp_path / "c")).returncode == 2


@pytest.mark.parametrize("harm", ["changed", "gone", "python gone"])
def test_what_is_damaged_is_unpacked_anew(toy: Path, tmp_path: Path, harm: str) -> None:
    run(toy, LLMDIAG_CACHE=str(tmp_path / "c"))
    program = unpacked(tmp_path / "c") / "bin" / ("python" if harm == "python gone" else "py-spy")
    if harm == "changed":
        program.write_text("#!/bin/sh\necho harm\n")
    else:
        program.unlink()
    said = run(toy, LLMDIAG_CACHE=str(tmp_path / "c"))
    assert (said.returncode, "unpacking to" in said.stderr) == (0, True)
    assert (unpacked(tmp_path / "c") / "bin" / "py-spy").read_text() == "#!/bin/sh\n"


def test_an_archive_that_was_damaged_on_its_way_is_refused(toy: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(toy) as archive:
        facts = json.loads(archive.read(start.BUILD))
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts[start.BUILD] = json.dumps({**facts, "sha256": hashlib.sha256(b"another").hexdigest()}).encode()
    with zipfile.ZipFile(tmp_path / "bad.pyz", "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    said = run(tmp_path / "bad.pyz", LLMDIAG_CACHE=str(tmp_path / "c"))
    assert said.returncode == 2
    assert "the archive is damaged: copy it again" in said.stderr
    assert list((tmp_path / "c").iterdir()) == []


def test_many_that_start_at_once_see_no_half_of_it(toy: Path, tmp_path: Path) -> None:
    argv, env = [sys.executable, str(toy), "x"], {"PATH": "/usr/bin:/bin", "LLMDIAG_CACHE": str(tmp_path / "c")}
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(8)]
    ended = [(process.communicate(timeout=60), process.returncode) for process in started]
    assert [code for _, code in ended] == [0] * 8, ended
    assert list((tmp_path / "c").iterdir()) == [unpacked(tmp_path / "c")]


def check(**facts: object) -> None:
    start._check_host({**HERE, **facts}, Path("x.pyz"), [])


def test_a_host_that_cannot_run_it_is_told_why() -> None:
    check()
    with pytest.raises(start.Unusable, match=r"is for riscv64, this machine is .*\n  build another: make dist DIST_MACHINE="):
        check(machine="riscv64")
    with pytest.raises(start.Unusable, match=r"needs glibc 9\.9, this host has 2\.\d+\n"):
        check(glibc=[9, 9])
    with pytest.raises(start.Unusable, match=r"needs Python 3\.99; .* is 3\.\d+\n  run it with that one, or build another: make dist DIST_PYTHON=3\.\d+$"):
        check(python=[3, 99])


def test_another_python_of_the_host_takes_over(toy: Path, tmp_path: Path) -> None:
    root, own = tmp_path / "r2", tmp_path / "bin"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "py-spy").write_text("#!/bin/sh\n")
    archive = build.seal(root, tmp_path / "d2", {**HERE, "python": [3, 99]}, "nothing\n", 0)
    own.mkdir()
    (own / "python3.99").write_text('#!/bin/sh\necho "$@"\n')
    (own / "python3.99").chmod(0o755)
    said = run(archive, "health", "x", PATH=str(own))
    assert said.stdout.split() == [str(archive), "health", "x"], said.stderr


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    with pytest.raises(start.Unusable, match=r"^\d+ MiB free$"):
        start._check_disk(tmp_path, 1 << 60)
    if Path("/proc/self").exists() and os.statvfs("/proc").f_flag & os.ST_NOEXEC:
        with pytest.raises(start.Unusable, match="mounted noexec"):
            start._check_disk(Path("/proc/self"), 1)


def test_the_start_is_read_by_old_pythons() -> None:
    """They say which one is needed; a syntax error would not."""
    import ast

    ast.parse(Path(start.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))


def test_the_same_input_is_the_same_archive(toy: Path, tmp_path: Path) -> None:
    again = build.seal(tmp_path / "root", tmp_path / "again", HERE, "nothing\n", 0)
    assert again.read_bytes() == toy.read_bytes()
    said = subprocess.run(["sha256sum", "-c", f"{again.name}.sha256"], cwd=again.parent, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


def test_what_another_patch_release_needs_is_in_it_too(tmp_path: Path) -> None:
    """As redis does: its async-timeout is for Pythons before 3.11.3, and pip asks that of the Python that it runs in."""
    folder = tmp_path / "mine-1.dist-info"
    folder.mkdir()
    wanted = ('async-timeout>=4.0; python_full_version < "3.11.3"', 'old; python_version < "3"', 'more; extra == "all"', 'arm; platform_machine == "aarch64"', "Mine")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n" + "".join(f"Requires-Dist: {each}\n" for each in wanted))
    assert build.missing(tmp_path, "3.11", "x86_64") == ["async-timeout>=4.0"]
    assert build.missing(tmp_path, "3.12", "aarch64") == ["arm"]


# The real one: built once, in half a minute.

LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))   # SIOCSIFFLAGS, IFF_UP
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("dist"), "{}.{}".format(*sys.version_info[:2]), os.uname().machine, level=0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def alone(archive: Path, home: Path) -> Callable[..., Ended]:
    """`alone("--version")`: with no network but loopback, no environment and a Python that has no pip."""
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace may be made here")
    python = shutil.which("python{}.{}".format(*sys.version_info[:2]), path="/usr/bin") or sys.executable  # another patch release, where there is one
    subprocess.run([python, "-m", "venv", "--without-pip", str(home / "bare")], check=True)
    before = ["unshare", "-n", sys.executable, "-c", LOOPBACK, "/usr/bin/env", "-i", f"HOME={home}", "PATH=/usr/bin:/bin"]

    def call(*args: str) -> Ended:
        done = subprocess.run([*before, str(home / "bare/bin/python"), str(archive), *args], capture_output=True, text=True, check=False, timeout=120, cwd=home)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return call


@pytest.fixture
def patient() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        yield process.pid
        process.communicate("\n")


@pytest.mark.install
def test_a_snapshot_and_its_analysis_without_network_pip_and_environment(alone: Callable[..., Ended], patient: int, tmp_path: Path) -> None:
    assert alone("--version").stdout == f"llmdiag, version {diag.__version__}\n"
    bundle = tmp_path / "b.zip"
    taken = alone("snapshot", str(patient), "-o", str(bundle), "--window", "1", "--samples", "2", "-f", "json")
    assert (taken.returncode, json.loads(taken.stdout)["verdict"]) == (0, "clear"), taken.stderr
    assert "unpacking" not in taken.stderr
    stacks = alone("query", str(bundle), "SELECT count(DISTINCT sample) AS n FROM stack_frames WHERE func = '<module>'", "-f", "json")
    assert json.loads(stacks.stdout)["rows"] == [{"n": 2}], "its own py-spy was run, and a child in the jail"
    shutil.copy(SAMPLES / "ghost-key-retry-loop" / "incident.zip", tmp_path / "mine.zip")
    judged = alone("analyze", str(tmp_path / "mine.zip"), "-f", "json")
    assert judged.returncode == 1, judged.stderr
    assert json.loads(judged.stdout)["findings"][0]["rule"] == "ghost-key-retry-loop"
    assert json.loads(judged.stdout)["subject"]["rules"] == len(rules.load(rules.shipped()))


@pytest.mark.install
def test_the_notice_names_every_package_and_its_licence(archive: Path, alone: Callable[..., Ended], home: Path) -> None:
    alone("--version")
    (place,) = (home / ".cache" / "llmdiag").iterdir()
    (site,) = place.glob("lib/python*/site-packages")
    with zipfile.ZipFile(archive) as opened:
        notice = opened.read("NOTICE").decode()
        assert json.loads(opened.read(start.BUILD))["glibc"] <= [2, build.GLIBC]
    head, *sections = notice.split("=" * 79 + "\n")
    listed = {line.split()[0].lower().replace("-", "_").replace(".", "_") for line in head.splitlines()[2:] if line}
    assert listed == {path.name.split("-")[0].lower() for path in site.glob("*.dist-info")}
    assert [section.splitlines()[0] for section in sections if "\n--- " not in section] == [], "a package without the text of its licence"
    assert "see its texts" not in head
    assert (place / "NOTICE").read_text() == notice
    assert [*site.glob("**/*.pyi"), *site.glob("pandas/tests"), *site.glob("*/direct_url.json")] == []
    assert (site / "diag" / "_samples" / "container" / "Dockerfile").is_file()
