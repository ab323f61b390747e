"""make oracle: runs every tests/oracle/*_files.py with the packages its first line names, each in an environment of its own.

    # requires: mindstudio-probe==26.2.0, torch==2.13.0

What they write to tests/tensors/data is kept with the sources, so the tests need none of these packages.

    python tests/oracle/run.py [NAME…]          e.g. msprobe
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "oracle"
REQUIRES = "# requires:"


def requirements(script: Path) -> list[str]:
    first = script.read_text(encoding="utf-8").partition("\n")[0]
    if not first.startswith(REQUIRES):
        sys.exit(f"{script}: the first line must be '{REQUIRES} package==version, …'")
    return [package.strip() for package in first.removeprefix(REQUIRES).split(",")]


def environment(script: Path) -> Path:
    """A Python with exactly these packages; built once, and anew when the line changes."""
    folder = BUILD / script.stem
    wanted = "\n".join(requirements(script))
    done = folder / "requirements.txt"
    if not done.is_file() or done.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "-q", *wanted.split("\n")], check=True)
        done.write_text(wanted, encoding="utf-8")
    return folder / "bin" / "python"


def main(names: list[str]) -> None:
    scripts = [script for script in sorted(HERE.glob("*_files.py")) if not names or script.stem.removesuffix("_files") in names]
    if not scripts:
        sys.exit(f"no such script in {HERE}: {', '.join(names)}")
    for script in scripts:
        print(f"{script.name}: {', '.join(requirements(script))}", flush=True)
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        subprocess.run([environment(script), script], check=True, env=env)


if __name__ == "__main__":
    main(sys.argv[1:])
