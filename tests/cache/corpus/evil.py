"""Pickles that would call something. They are written, and never loaded: each would only create a file under the canary path."""

from __future__ import annotations

import builtins
import os
import pickle
import subprocess
from typing import Any

import numpy as np
from dice import Dice


class Call:
    """An object whose pickle says: call this function with these arguments when you load me."""

    def __init__(self, dice: Dice) -> None:
        path = f"{dice.canary}/{dice.serial()}"
        self.call = dice.pick((
            (os.system, (f"mkdir -p {dice.canary} && touch {path}",)),
            (subprocess.check_output, (["touch", path],)),
            (builtins.eval, (f"__import__('os').makedirs({path!r})",)),
            (builtins.exec, (f"import os; os.makedirs({path!r})",)),
            (os.mkdir, (path,)),
        ))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def hidden(dice: Dice) -> Any:
    """A call alone, or behind something that looks like data."""
    call = Call(dice)
    return dice.pick((call, {"embedding": np.ones(8, np.float32), "hook": call}, [np.ones(4, np.float32), call], ("v2", call)))


def raw(dice: Dice) -> bytes:
    """A pickle written by hand, in the old text opcodes or with STACK_GLOBAL, as attackers do."""
    path = f"{dice.canary}/{dice.serial()}"
    command = f"touch {path}".encode()
    short = b"\x8c" + bytes([len(command)]) + command
    return dice.pick((
        b"cos\nsystem\n(S'" + command + b"'\ntR.",
        b"\x80\x02cposix\nsystem\nq\x00X" + len(command).to_bytes(4, "little") + command + b"\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93" + short + b"\x85R.",
        b"(S'" + command + b"'\nios\nsystem\n.",
        b"\x80\x02(cos\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"o.",
        pickle.dumps(np.ones(16, np.float32), protocol=4)[:-1] + b"0cos\nsystem\n(S'" + command + b"'\ntR.",
    ))
