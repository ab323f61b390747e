"""The map of a cache as lines: every column can be told."""

import pytest

from diag.report.heatmap import Cell, draw

SAME = Cell("same", 0.0, 1.0)


@pytest.mark.parametrize("blocks", [1, 4, 10, 11, 12, 13, 28, 36])
@pytest.mark.parametrize("width", [46, 80, 100])
def test_the_number_of_the_last_block_stands_above_it(blocks: int, width: int) -> None:
    cells = {(layer, block): Cell("different", 1.0, 0.0) if block % 2 else SAME for layer in range(2) for block in range(blocks)}
    lines = [line.plain for line in draw(cells, width)]
    last = lines[0].split()[-1]
    place = lines[0].rindex(last)
    shown = lines[1][7:].split(" cos ")[0].rstrip()
    assert lines[1][place] in ".x~", (lines[0], lines[1])
    if "~" not in shown:
        assert (last, place) == (str(blocks - 1), 7 + len(shown) - 1), (lines[0], lines[1])


def test_twelve_columns_have_twelve_numbers() -> None:
    lines = [line.plain for line in draw({(0, block): SAME for block in range(12)}, 100)]
    assert lines[0].split() == ["layer", *map(str, range(12))]
    assert [lines[1][lines[0].index(f" {block}") + 1] for block in range(12)] == ["."] * 12
