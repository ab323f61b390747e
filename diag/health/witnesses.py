"""What an engine's own metrics prove: one TOML file per engine family in `witnesses/`, read strictly.

    kind = "vllm"
    prefixes = ["vllm:", "vllm_", "ray_vllm_"]     # how sites spell the beginning of its names
    [[witness]]
    name = "kv_cache_usage_perc"                   # without the prefix
    role = "level"

Everything that judges progress (the states of `health`, the table engine_progress) asks `find`; there is no other list of names.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from diag.errors import RuleError
from diag.parsers import prometheus

Role = Literal[
    "running", "waiting", "deferred", "in_flight", "progress", "level", "idle_loop", "first_token", "finished", "sleep", "ready", "uptime", "identity"
]
PROGRESS: tuple[Role, ...] = ("progress", "level")
"""The roles that are witnesses of progress: a counter that rises, a gauge that reaches a new maximum."""


class Witness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sample name and what it means.

    running, waiting, in_flight: gauges of requests (in_flight is counted by the HTTP layer, independent of the engine).
    deferred: requests that wait for something else than a place in the batch, `why` says for what: no admission stall.
    progress: a counter; any rise is progress. level: a gauge; a new maximum since the last output is progress.
    idle_loop: a counter that rises while nothing runs. first_token, finished: requests that reached that point.
    sleep: value 1 = asleep. ready: value 0 = still starting. uptime: falls on a restart.
    identity: its labels (`identity`) name the backend.
    """

    name: str
    role: Role
    unit: Literal["", "tokens", "chunk_tokens", "steps", "requests", "share", "seconds"] = ""
    """What it counts. chunk_tokens are counted as they are processed, tokens only with an output or at the end."""
    where: dict[str, str] = {}
    """Only the series with these labels; "" = without it."""
    of_waiting: bool = False
    """The gauges of waiting requests count the deferred ones of this series, too."""
    output: bool = False
    """Moves with output, so levels are compared anew after it."""
    in_prefill: bool = False
    """Moves during a long prefill too: only such a witness makes flatness say something about a prefill."""
    optional: bool = False
    """Stays 0 for ever unless an option switches it on: no witness while it is 0."""
    identity: tuple[str, ...] = ()
    capacity: tuple[str, ...] = ()
    """Labels whose product is the size of the KV cache in tokens."""
    since: str = ""
    until: str = ""
    why: str = ""


class Trap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name that looks like a witness and is none, and the reason in a line."""

    name: str
    why: str


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """One engine family. The lower `rank`, the closer to the engine: a worker of Dynamo that passes vLLM's series through is vLLM."""

    kind: str
    title: str
    rank: int
    versions: tuple[str, ...]
    prefixes: tuple[str, ...]
    """Of several, where the first ends in a colon, the others are spellings of it; else they are parts of the product."""
    witness: tuple[Witness, ...]
    trap: tuple[Trap, ...]
    engine_labels: tuple[str, ...] = ()
    """Labels that tell engines apart, besides vLLM's `engine` and the ranks."""
    ignore: dict[str, str] = {}
    """Series whose label is there and has another value are left out: they are parts of the total."""
    companion: bool = False
    """Stands beside an engine in one text and speaks for it when there is one engine only."""


@dataclass(frozen=True)
class Found:
    """A sample name recognised: of which family, under which plain name, as what."""

    family: Family
    plain: str
    witness: Witness


def shipped() -> Path:
    """The folder of the families that come with llmdiag."""
    return Path(__file__).parent / "witnesses"


@lru_cache
def families() -> tuple[Family, ...]:
    """The shipped families, closest to the engine first."""
    return load(shipped())


def load(folder: Path) -> tuple[Family, ...]:
    """All families of a folder. Raises RuleError naming file and key."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        try:
            family = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Family)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
            raise RuleError(f"{path}: {error}", hint="diag/health/witnesses.py says which keys there are") from error
        if family.kind != path.stem:
            raise RuleError(f"{path}: kind is {family.kind!r}", hint="it is the name of the file")
        found.append(family)
    return tuple(sorted(found, key=lambda family: (family.rank, family.kind)))


@lru_cache(maxsize=4096)
def named(name: str) -> tuple[Found, ...]:
    """What a sample name may be, whatever its labels."""
    return tuple(
        Found(family, f"{family.prefixes[0] if family.prefixes[0].endswith(':') else prefix}{witness.name}", witness)
        for family in families() for prefix in family.prefixes if name.startswith(prefix)
        for witness in family.witness if witness.name == name[len(prefix):]
    )


def find(name: str, labels: Mapping[str, str]) -> Found | None:
    """A series -> what it proves; None: nothing that is known, or a part of a total that is counted elsewhere."""
    for found in named(name):
        where, ignore = found.witness.where, found.family.ignore
        if not where or all(labels.get(key, "") == value for key, value in where.items()):
            return None if ignore and any(labels.get(key, value) != value for key, value in ignore.items()) else found
    return None


def engine_of(family: Family, labels: Mapping[str, str]) -> str | None:
    """Which engine a series of this family is about; None = it does not say."""
    found = prometheus.engine(labels)
    if found is not None:
        return found
    given = [labels[label] for label in family.engine_labels if labels.get(label)]
    return "/".join(given) if given else None
