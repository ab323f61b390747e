"""One measured promise: bar, value, and what a named peer does in the same run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """`value` must not exceed `bar`; both in `unit`."""

    name: str
    value: float
    bar: float
    unit: str
    peer: str

    @property
    def met(self) -> bool:
        return self.value <= self.bar


def show(bar: Bar) -> None:
    """One line."""
    print(f"{'ok  ' if bar.met else 'MISS'} {bar.name:<58} {bar.value:9.2f} {bar.unit:<3} bar {bar.bar:9.2f}   peer: {bar.peer}", flush=True)
