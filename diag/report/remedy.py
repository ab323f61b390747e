"""What a reason asks for, put into the command that is printed below it: an option, an address, root."""

import re

REDIS_URL = "LLMDIAG_REDIS_URL=redis://HOST:PORT "
# "run llmdiag as root", "run llmdiag as its user or root"; not "as root on the host": there the pid is another one
AS_ROOT = re.compile(r"\brun (?:llmdiag|it) as (?:[^;]*? )?root\b(?! on the host)")
OPTIONS = {"--port": "PORT", "--log": "FILE", "--bearer-file": "FILE"}
ASKS_REDIS = re.compile(r"--redis\b|\bset LLMDIAG_REDIS_URL\b")
WANTS_LOGIN = re.compile(r"\bset LLMDIAG_REDIS_URL\b")
NO_LOGIN = re.compile(r"(LLMDIAG_REDIS_URL='?(?:redis|rediss|valkey|valkeys)://)(?!\S*@)")


def completed(command: str, reason: str) -> str:
    """A `llmdiag snapshot` command with what the reason of a gap asks for; upper-case words are to be filled in.

    Where a right is missing, `sudo` gets everything else by itself.
    """
    if not re.search(r"\bllmdiag snapshot\b", command):
        return command
    if ASKS_REDIS.search(reason) and "LLMDIAG_REDIS_URL=" not in command:
        command = REDIS_URL + command
    if WANTS_LOGIN.search(reason):
        command = NO_LOGIN.sub(r"\1USER:PASSWORD@", command)
    if AS_ROOT.search(reason):
        return f"sudo {command}"
    for option, value in OPTIONS.items():
        if re.search(rf"(?<!\S){option}\b(?!-)", reason) and f" {option} " not in f"{command} ":
            command += f" {option} {value}"
    return command
