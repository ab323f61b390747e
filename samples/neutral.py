"""Replace the paths of the recording machine in a bundle by neutral ones, digests included.

    python samples/neutral.py BUNDLE… [FROM=TO…]     # further replacements, e.g. /data/models=/models
"""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def replacements() -> dict[str, str]:
    """Longest first: this checkout, the virtual environment, the interpreter, the home folder."""
    found = {str(HERE): "/srv/llmdiag", sys.prefix: "/opt/venv", sys.base_prefix: "/usr/local", str(Path.home()): "/home/user"}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def neutral(bundle: Path, further: dict[str, str]) -> None:
    """Rewrite one bundle in place."""
    swaps = {**further, **replacements()}

    def swap(data: bytes) -> bytes:
        for old, new in swaps.items():
            data = data.replace(old.encode(), new.encode())
        return data

    with zipfile.ZipFile(bundle) as packed:
        members = {name: swap(packed.read(name)) for name in packed.namelist()}
    manifest = json.loads(members["manifest.json"])
    for entry in manifest["artefacts"]:
        data = members[entry["path"]]
        entry |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    members["manifest.json"] = json.dumps(manifest, indent=1).encode()
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data)


if __name__ == "__main__":
    pairs = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    for argument in sys.argv[1:]:
        if "=" not in argument:
            neutral(Path(argument), pairs)
