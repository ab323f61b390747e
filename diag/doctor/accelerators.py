"""Accelerators: is the vendor's tool there, and does it answer? One that hangs is how a wedged driver looks."""

import shutil
from collections.abc import Iterator

from diag.collectors.gpu import DEV, NODES
from diag.doctor.ground import Check, Ground
from diag.errors import CollectorError, TimedOut
from diag.instruments import beside

ORDER = 70
PATIENCE_S = 5.0
QUESTIONS = {
    "nvidia-smi": ("nvidia-smi", "-L"), "rocm-smi": ("rocm-smi", "--showid"), "npu-smi": ("npu-smi", "info", "-l"), "xpu-smi": ("xpu-smi", "discovery"),
}
INSIDE = {
    "nvidia-smi": "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",
    "rocm-smi": "docker run --device /dev/kfd --device /dev/dri … with rocm-smi in the image",
    "npu-smi": "docker run -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi -v /usr/local/dcmi:/usr/local/dcmi …",
}
"""How a tool comes into a container that has the devices."""


def check(ground: Ground) -> Iterator[Check]:
    """All tools are asked at once. A device without its tool is missing something; no device and no tool is a machine without."""
    asked = {name: beside.start(argv, PATIENCE_S) for name, argv in QUESTIONS.items() if shutil.which(name)}
    lonely = [name for name, pattern in NODES.items() if name not in asked and any(DEV.glob(pattern))]
    for name, tool in asked.items():
        yield _answer(name, tool)
    for name in lonely:
        yield Check(name, False, "its devices are in /dev, but the tool is not on PATH: memory, errors and holders stay unknown", INSIDE[name])
    if not asked and not lonely:
        yield Check("accelerators", None, f"no device and none of {', '.join(QUESTIONS)} here")


def _answer(name: str, tool: beside.Tool) -> Check:
    by_hand = f"timeout {PATIENCE_S:g} {' '.join(QUESTIONS[name])}"
    try:
        output = beside.gather(tool)
    except TimedOut as error:
        return Check(name, False, f"{error.message}: the driver may be wedged", f"sudo dmesg -T | grep -iE 'xid|nvrm|amdgpu|reset'; {by_hand}")
    except CollectorError as error:
        return Check(name, False, error.message, by_hand)
    if output.code != 0:
        return Check(name, False, f"exit code {output.code}: {output.complaint}", by_hand)
    devices = len(output.out.strip().splitlines()) if name == "nvidia-smi" else 0
    return Check(name, True, f"answers{f', {devices} device' + 's' * (devices != 1) if devices else ''}")
