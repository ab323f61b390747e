"""Which of two dumps was taken first, where their names tell: request-7 before request-12."""

import re

NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


def is_before(one: str, other: str) -> bool:
    """Do both names end in a number behind the same words, this one in the lower?"""
    ours, theirs = NUMBERED.fullmatch(one), NUMBERED.fullmatch(other)
    return ours is not None and theirs is not None and ours[1] == theirs[1] and int(ours[2]) < int(theirs[2])
