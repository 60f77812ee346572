"""What `make examples` draws of a row: the masks as the models have them, and the loss weights."""

from __future__ import annotations

import numpy as np
import pytest

from t5xpg.check import examples
from t5xpg.data.batch import ENC_DEC, LM, PREFIX_LM, layout_of


@pytest.mark.parametrize(
    ("converter", "arrays", "drawn"),
    [
        (
            ENC_DEC,
            {"encoder_input_tokens": [5, 6, 1, 0], "target_tokens": [7, 8, 1, 0], "loss_weights": [1, 1, 1, 0]},
            ["###.  x 4", "#...", "##..", "###.  x 2", "###.  x 4", "###."],
        ),
        (  # examples of one row do not see each other
            LM,
            {"target_tokens": [7, 1, 8, 1], "loss_weights": [1, 1, 1, 1], "segment_ids": [1, 1, 2, 2]},
            ["#...", "##..", "..#.", "..##", "####"],
        ),
        (  # a prefix sees itself
            PREFIX_LM,
            {"target_tokens": [5, 1, 7, 1], "loss_weights": [0, 0, 1, 1], "causal_attention": [1, 1, 1, 0]},
            ["###.  x 3", "####", "..##"],
        ),
    ],
)
def test_the_masks_of_a_row(converter: str, arrays: dict[str, list[int]], drawn: list[str]) -> None:
    row = {
        name if name.startswith("encoder") else f"decoder_{name}": np.array([values], np.int32)
        for name, values in arrays.items()
    }
    lines = examples.mask_drawing(row, layout_of(converter))
    assert [line.removeprefix("  ") for line in lines if line.startswith("  ")] == drawn, "without the titles"


def test_of_a_long_row_a_character_stands_for_several_positions() -> None:
    seen = np.tri(5, dtype=bool)
    assert examples.mask_lines(seen, 2) == ["+..", "#+.", "###"]
