"""Record the lab's drill under full load anew, set up badly and well: `python record.py` in this folder writes bad/ and good/."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def record(setup: str) -> None:
    """One drill, its logs and the map that reads them."""
    target = HERE / setup
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        subprocess.run([sys.executable, str(HERE / "lab.py"), "--logs", str(logs), "--setup", setup], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(logs, target)
    shutil.copy2(HERE / "events-map.toml", target)


if __name__ == "__main__":
    for name in ("bad", "good"):
        record(name)
