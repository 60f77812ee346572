"""What `make examples` draws of a row: the masks as the models have them, and the loss weights."""

from __future__ import annotations

from unittest.mock import MagicMock

import numpy as np
import pytest

from t5xpg.check import examples
from t5xpg.data.batch import ENC_DEC, LM, PREFIX_LM, layout_of
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary


def row(**arrays: list[int]) -> dict[str, np.ndarray]:
    return {name: np.array([values], np.int32) for name, values in arrays.items()}


def drawing(converter: str, **arrays: list[int]) -> list[str]:
    """Without the titles."""
    lines = examples.mask_drawing(row(**arrays), layout_of(converter))
    return [line.removeprefix("  ") for line in lines if line.startswith("  ")]


def test_the_masks_of_a_row() -> None:
    drawn = drawing(
        ENC_DEC,
        encoder_input_tokens=[5, 6, 1, 0],
        decoder_target_tokens=[7, 8, 1, 0],
        decoder_loss_weights=[1, 1, 1, 0],
    )
    assert drawn == ["###.  x 4", "#...", "##..", "###.  x 2", "###.  x 4", "###."]


def test_examples_of_one_row_do_not_see_each_other_and_a_prefix_sees_itself() -> None:
    packed = drawing(
        LM,
        decoder_target_tokens=[7, 1, 8, 1],
        decoder_loss_weights=[1, 1, 1, 1],
        decoder_segment_ids=[1, 1, 2, 2],
    )
    assert packed == ["#...", "##..", "..#.", "..##", "####"]
    prefix = drawing(
        PREFIX_LM,
        decoder_target_tokens=[5, 1, 7, 1],
        decoder_loss_weights=[0, 0, 1, 1],
        decoder_causal_attention=[1, 1, 1, 0],
    )
    assert prefix == ["###.  x 3", "####", "..##"]


@pytest.mark.parametrize("converter", [ENC_DEC, LM])
def test_rows_that_fill_a_batch_up_are_no_examples(
    converter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = {"encoder_input_tokens": np.array([[70, 1], [0, 0]], np.int32)} if converter == ENC_DEC else {}
    batch = inputs | {
        "decoder_input_tokens": np.array([[0, 71], [0, 0]], np.int32),
        "decoder_target_tokens": np.array([[71, 1], [0, 0]], np.int32),
        "decoder_loss_weights": np.array([[1, 1], [0, 0]], np.int32),
    }
    service = MagicMock()
    service.return_value.__enter__.return_value.describe.return_value.vocabulary = Vocabulary("bytes", extra_ids=0)
    service.return_value.__enter__.return_value.open.return_value = iter([batch])
    monkeypatch.setattr(examples, "DataService", service)
    monkeypatch.setattr(examples.prepare, "prepare", lambda *_: None)
    lengths = {"targets": 2} if converter == LM else {"inputs": 2, "targets": 2}
    examples.show(DatasetConfig("pairs", lengths, feature_converter=converter), 2)
    printed = capsys.readouterr().out
    assert "\nexample 1\n" in printed
    assert "example 2" not in printed


def test_of_a_long_row_a_character_stands_for_several_positions() -> None:
    seen = np.tri(5, dtype=bool)
    assert examples.mask_lines(seen, 2) == ["+..", "#+.", "###"]
