"""Lists of packages that a person saved, whole or in part, and what changed between two of them."""

import json

import pytest

from diag.collectors import host
from diag.parsers import package_lists
from tests.collectors.harness import parse

FREEZE = "fastapi==0.128.0\nflashinfer-python==0.6.5.post2\nnvidia-nccl-cu12==2.27.5\ntorch==2.11.0+cu130\nvllm==0.20.4\nyarl==1.20.0\n"
TABLE = "Package            Version\n------------------ -------------\nflashinfer-python  0.6.5.post2\nvllm               0.20.4\nyarl               1.20.0\n"
CONDA = "# packages in environment at /opt/conda:\n#\n# Name  Version  Build  Channel\nflashinfer-python  0.6.5.post2  pypi_0  pypi\nvllm  0.20.4  pypi_0  pypi\nyarl  1.20.0  py312  conda-forge\n"
DIFF = "--- a.txt\n+++ b.txt\n@@ -11,4 +11,4 @@\n fastapi==0.128.0\n-flashinfer-python==0.6.4\n+flashinfer-python==0.6.5.post2\n numpy==2.3.0\n@@ -90,2 +90,2 @@\n-vllm==0.20.3\n+vllm==0.20.4\n"
JSON = json.dumps([{"name": "vllm", "version": "0.20.4"}, {"name": "flashinfer-python", "version": "0.6.5.post2"}, {"name": "yarl", "version": "1.20.0"}])
WHOLE = FREEZE + "".join(f"package{number}==1.{number}\n" for number in range(20))


@pytest.mark.parametrize("text", [FREEZE, TABLE, CONDA, DIFF, JSON, f"CUDA_LAUNCH_BLOCKING=1\n\n{FREEZE}\ncompute capability: 9.0\n", WHOLE])
def test_what_is_installed(text: str) -> None:
    rows = parse(host, {"packages.txt": text})
    found = {row["component"]: row["version"] for row in rows["versions"]}
    assert (found["flashinfer"], found["vllm"]) == ("0.6.5.post2", "0.20.4")
    (said,) = rows.get("collected", [{"status": "ok"}])
    assert said["status"] == ("ok" if text == WHOLE else "partial")


def test_each_version_has_its_line() -> None:
    sources = {row["component"]: row["source"] for row in parse(host, {"packages.txt": FREEZE})["versions"]}
    assert (sources["vllm"], sources["nccl"], sources["cuda"]) == ("packages.txt:5", "packages.txt:3", "packages.txt:4")


@pytest.mark.parametrize("text", ["", "a==b\nc==d\ne==f\n", "yarl==1.20.0\nattrs==25.1\nidna==3.10\n", "vllm==0.20.4\n", "if x == 1:\n", "[1, 2]", "[{}]", "name  1.2.3\n" * 5])
def test_what_is_no_list_of_an_engines_packages(text: str) -> None:
    assert not package_lists.recognise(text)
