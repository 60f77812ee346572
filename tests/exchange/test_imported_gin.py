"""What an import says of evaluating what it took."""

from pathlib import Path

import pytest

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.imported_gin import experiment_gin
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel


@pytest.mark.parametrize(
    ("vocabulary", "task", "options"),
    [
        (Vocabulary("bytes", 0, "byt5_google"), "pydocs_span_corruption_byt5", ()),
        (Vocabulary("bytes", 125, "transformers"), "pydocs_prefix_lm", ("MIXTURE_OR_TASK_NAME=", "MODULE_IMPORT=")),
    ],
)
def test_an_evaluation_has_a_task_with_the_ids(vocabulary: Vocabulary, task: str, options: tuple[str, ...]) -> None:
    model = EncoderDecoderModel(T5Config(vocab_size=384))
    text, said = experiment_gin("mine", Path("runs/mine"), model, vocabulary, "a checkpoint")
    assert said.startswith("make eval EXP=mine")
    assert all(option in said for option in options)
    assert ("GIN=" in said) == bool(options)
    assert said in text
    assert f"MIXTURE_OR_TASK_NAME = '{task}'\n" in text
