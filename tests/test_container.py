"""samples/container: the steps of the image, by hand, and what the rights are that its files ask for."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from diag import cli
from tests.conftest import ROOT, SAMPLES

HERE = SAMPLES / "container"
README = (HERE / "README.md").read_text(encoding="utf-8")


def steps() -> list[tuple[str, list[str]]]:
    """(instruction, words) of the Dockerfile."""
    lines = [line for line in (HERE / "Dockerfile").read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], shlex.split(line.partition(" ")[2])) for line in lines]


def test_what_is_copied_is_enough_to_install_it(tmp_path: Path) -> None:
    for word, (*sources, target) in [(word, words) for word, words in steps() if word == "COPY" and not words[0].startswith("--from")]:
        for source in sources:
            place = tmp_path / target / (source if target.endswith("/") else "")
            assert (ROOT / source).exists(), f"{word} {source}"
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    done = subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"diag/cli.py", "diag/_rules/cpu-spin.toml", "diag/_samples/container/Dockerfile", "diag/help/tour.md"} <= set(names)


def test_the_image_runs_what_stands_behind_the_dashes() -> None:
    runs = [" ".join(words) for word, words in steps() if word == "RUN"]
    assert runs == ["python -m venv /opt/llmdiag", "/opt/llmdiag/bin/pip install --no-cache-dir ."], "test_install.py does the same"
    assert [word for word, _ in steps() if word in ("ENTRYPOINT", "USER")] == [], "kubectl debug replaces the command; other users' processes need root"
    assert [words[0] for word, words in steps() if word == "ENV"] == ["PATH=/opt/llmdiag/bin:$PATH"]
    assert {words[0] for word, words in steps() if word == "FROM"} == {"python:3.12-slim-bookworm"}, "the environment is copied: both need the same Python"


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed here; pip install 'llmdiag[test]' brings it")
    return list(yaml.safe_load_all((HERE / name).read_text(encoding="utf-8")))


def test_the_rights_are_those_that_kubectl_needs_and_no_more() -> None:
    outside, debug, binding = documents("rbac.yaml")
    assert [item["kind"] for item in (outside, debug, binding)] == ["Role", "Role", "RoleBinding"]
    granted = {role["metadata"]["name"]: {(what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]} for role in (outside, debug)}
    assert granted["llmdiag-outside"] == {("pods", "get"), ("pods", "list"), ("pods/log", "get"), ("events", "get"), ("events", "list")}
    assert {what for what, _ in granted["llmdiag-debug"]} == {"pods", "pods/ephemeralcontainers", "pods/attach", "pods/exec"}
    assert ("pods/ephemeralcontainers", "patch") in granted["llmdiag-debug"]
    assert all("*" not in rule["apiGroups"] + rule["resources"] + rule["verbs"] for role in (outside, debug) for rule in role["rules"])
    assert binding["roleRef"]["name"] == "llmdiag-outside", "the other one is as much as root in the pod: nobody gets it in passing"
    assert {item["metadata"]["namespace"] for item in (outside, debug, binding)} == {"inference"}


def test_root_is_asked_for_in_so_many_words() -> None:
    (custom,) = documents("root.yaml")
    assert custom == {"securityContext": {"runAsUser": 0, "runAsNonRoot": False, "privileged": True}}


def test_the_readme_names_files_and_options_that_there_are() -> None:
    assert re.findall(r"-f (samples/\S+)", README) == ["samples/container/Dockerfile"]
    assert all((HERE / name).is_file() for name in re.findall(r"(\w+\.yaml)", README))
    debug = [line for line in README.splitlines() if "kubectl debug -it" in line]
    assert len(debug) == 2
    assert all("--target=CONTAINER --profile=sysadmin" in line for line in debug)
    options = {option for command in cli.cli.commands.values() for parameter in command.params for option in parameter.opts}
    for line in README.splitlines():
        words = line.split() if line.startswith("llmdiag ") else []
        assert [word for word in words if word.startswith("--") and word not in options] == []


WITHOUT = {
    "SYS_PTRACE": ("-sys_ptrace", "py-spy may not read this process (CAP_SYS_PTRACE is missing)"),
    "SYSLOG": ("-syslog,-sys_admin", "dmesg: read kernel buffer failed: Operation not permitted"),
}


@pytest.mark.live
@pytest.mark.parametrize("right", WITHOUT)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give away")
def test_a_missing_right_is_reported_in_the_words_of_the_table(right: str, tmp_path: Path) -> None:
    """Only collected: the reasons stand in the manifest, and every report prints them."""
    if right == "SYSLOG" and Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "0":
        pytest.skip("the kernel log of this machine is open to everybody")
    without, says = WITHOUT[right]
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `{right}`")]
    assert f"`{says}`" in row
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "\n"
        done = subprocess.run(
            ["setpriv", "--bounding-set", without, "--inh-caps=-all", sys.executable, "-m", "diag.cli", "snapshot", str(process.pid),
             "--collect-only", "--window", "0.5", "--samples", "2", "-o", str(tmp_path / "b.zip")],
            capture_output=True, text=True, check=False, timeout=60, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/nowhere"},
        )  # fmt: skip
        process.communicate("\n")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(zipfile.ZipFile(tmp_path / "b.zip").read("manifest.json"))
    reasons = [item["reason"] or "" for item in manifest["collectors"].values()] + [note["reason"] for item in manifest["collectors"].values() for note in item["notes"]]
    assert any(says in reason for reason in reasons), reasons
