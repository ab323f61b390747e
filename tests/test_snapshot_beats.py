"""Every sample asked for has a beat of its own, whatever the window."""

import pytest

from diag.live import Options
from diag.snapshot import beats


@pytest.mark.parametrize("window_s", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("samples", [1, 2, 5, 9])
def test_no_sample_is_lost(window_s: float, samples: int) -> None:
    ticks = list(beats(Options(window_s=window_s, samples=samples)))
    assert [tick.sample for tick in ticks if tick.sample is not None] == list(range(samples))
    assert [tick.last for tick in ticks] == [False] * (len(ticks) - 1) + [True]
    assert [tick.number for tick in ticks] == list(range(len(ticks)))
    if samples > 1:
        assert (ticks[0].sample, ticks[-1].sample) == (0, samples - 1)
    assert (ticks[0].share, ticks[-1].share) == (0.0, 1.0)
