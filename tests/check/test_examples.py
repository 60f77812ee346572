"""What `make examples` draws of a row: the masks as the models have them, and the loss weights."""

from unittest.mock import MagicMock

import numpy as np
import pytest

from t5xpg.check import examples
from t5xpg.data.batch import ENC_DEC, LM, PREFIX_LM, layout_of
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary


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


@pytest.mark.parametrize("converter", [ENC_DEC, LM])
def test_rows_that_fill_a_batch_up_are_no_examples(
    converter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"encoder_input": [70, 1]} if converter == ENC_DEC else {}
    rows |= {"decoder_input": [0, 71], "decoder_target": [71, 1]}
    batch = {f"{name}_tokens": np.array([row, [0, 0]], np.int32) for name, row in rows.items()}
    batch["decoder_loss_weights"] = np.array([[1, 1], [0, 0]], np.int32)
    service = MagicMock()
    opened = service.return_value.__enter__.return_value
    opened.describe.return_value.vocabulary = Vocabulary("bytes", extra_ids=0)
    opened.open.return_value = iter([batch])
    monkeypatch.setattr(examples, "DataService", service)
    monkeypatch.setattr(examples.Recipe, "of", MagicMock())
    lengths = {"targets": 2} if converter == LM else {"inputs": 2, "targets": 2}
    examples.show(DatasetConfig("pairs", lengths, feature_converter=converter), 2)
    printed = capsys.readouterr().out
    assert "\nexample 1\n" in printed
    assert "example 2" not in printed
