"""The task of experiments/t5gemma_270m, and its masked words against decoding token by token."""

from typing import Any

import jax
import numpy as np
import pytest

from t5xpg.data.tasks.task_names import BYTES
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model
from tests.small_models import SIZES, seq2seq
from tests.workplace import program_of

masked_words = program_of("experiments/t5gemma_270m/masked_words.py")


def written(model: Model, params: Any, before: list[int], source: list[int]) -> list[int]:
    """The letters that greedy decoding writes behind `before`, at most six."""
    of_word, word = BYTES.word_flags()[0], list[int]()
    while len(word) < 6:
        targets = np.array([[*before, *word, BYTES.eos_id]], np.int32)
        best = int(np.argmax(model.logits(params, seq2seq(np.array([source], np.int32), targets))[0, -1]))
        if not of_word[best]:
            break
        word.append(best)
    return word


@pytest.mark.parametrize("kind", [EncoderDecoderModel, DecoderOnlyModel])
def test_a_word_counts_if_greedy_decoding_writes_it(kind: type[Model]) -> None:
    model: Any = kind(T5Config(**{**SIZES, "vocab_size": BYTES.size}))
    params = model.init(jax.random.key(0))
    draw, asked, expected = np.random.default_rng(0), [], []
    for number in range(11):
        before, behind = (draw.integers(35, 120, size).tolist() for size in draw.integers(1, 30, 2))
        word = written(model, params, before, [*before, BYTES.sentinel_id(0), *behind, BYTES.eos_id])
        whole, right = word[:3], len(word) <= 3
        if number % 4 == 3:  # its beginning, or nothing of it
            whole, right = [*word[:2], BYTES.encode("a")[0]], word == [*word[:2], BYTES.encode("a")[0]]
        if whole:
            asked.append(masked_words.Example(before, whole, behind))
            expected.append(right)
    assert {True, False} <= set(expected)
    assert masked_words.hits(model, params, BYTES, asked).tolist() == expected


def test_the_blank_of_an_example_is_one_word() -> None:
    texts = [
        f"The {number} times that some words are written (here) and there, so that this is long. " * 2
        for number in range(9)
    ]
    found = masked_words.examples(iter(texts), BYTES)
    assert len(found) == 9
    for text, one in zip(texts, found, strict=True):
        parts = [BYTES.decode(ids) for ids in (one.before, one.word, one.behind)]
        assert text.startswith("".join(parts))
        assert parts[1].strip().isalpha()
        assert not parts[0].endswith(" ")


def test_whole_texts_come_back_from_masked_words() -> None:
    tf = pytest.importorskip("tensorflow")
    denoising = pytest.importorskip("experiments.t5gemma_270m.denoising")
    spans, first = [99, 5, 6, 98, 7], 90
    example = {"inputs": tf.constant([3, 99, 4, 98]), "targets": tf.constant(spans)}
    found = denoising.whole_text(example, first)
    assert found["inputs"].numpy().tolist() == [3, 99, 4, 98]
    assert found["targets"].numpy().tolist() == [3, 5, 6, 4, 7]
