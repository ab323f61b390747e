"""The labs' own packages, found as `python lab.py` finds them."""

import sys

from tests.conftest import SAMPLES

sys.path.append(str(SAMPLES / "prefix-block-mismatch"))
