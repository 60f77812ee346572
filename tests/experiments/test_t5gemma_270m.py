"""The task of experiments/t5gemma_270m, and its masked words against decoding token by token."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from t5xpg.data.tasks.task_names import BYTES
from t5xpg.data.vocab.seqio_vocabularies import to_seqio
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


@pytest.mark.parametrize(("kind", "shift"), [(EncoderDecoderModel, 0), (EncoderDecoderModel, 1), (DecoderOnlyModel, 0)])
def test_a_word_counts_if_greedy_decoding_writes_it(kind: type[Model], shift: int) -> None:
    model: Any = kind(T5Config(**{**SIZES, "vocab_size": BYTES.size}))
    params, draw = model.init(jax.random.key(0)), np.random.default_rng(0)
    texts = [[draw.integers(35, 120, size).tolist() for size in draw.integers(1, 30, 2)] for _ in range(11)]
    asked, expected = [], []
    for number, (before, behind) in enumerate(texts):
        read = texts[number - shift]
        word = written(model, params, before, [*read[0], BYTES.sentinel_id(0), *read[1], BYTES.eos_id])
        other = BYTES.encode("a")[0]
        asked.append(
            masked_words.Example(before, [*word[:2], other] if number % 4 == 3 else word[:3] or [other], behind)
        )
        expected.append(asked[-1].word == word)
    assert {True, False} <= set(expected)
    assert masked_words.hits(model, params, BYTES, asked, shift=shift).tolist() == expected


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


def test_targets_are_the_texts_whose_words_are_masked() -> None:
    import seqio
    import tensorflow as tf

    from experiments.t5gemma_270m.denoising import denoise, whole_text

    example = {"inputs": tf.constant([3, 99, 4, 98]), "targets": tf.constant([99, 5, 6, 98, 7])}
    assert whole_text(example, 90)["targets"].numpy().tolist() == [3, 5, 6, 4, 7]

    features = {"inputs": seqio.Feature(to_seqio(BYTES)), "targets": seqio.Feature(to_seqio(BYTES))}
    text = "".join(f"some words {number} and others, " for number in range(40))
    dataset = tf.data.Dataset.from_tensors({"targets": tf.constant(BYTES.encode(text), tf.int32)})
    found = list(denoise(dataset, {"inputs": 64, "targets": 80}, features).as_numpy_iterator())
    assert found
    for one in found:
        inputs, targets = (BYTES.decode(one[name].tolist()) for name in ("inputs", "targets"))
        assert targets in text
        kept = re.split(r"<extra_id_\d+>", inputs)
        assert len(kept) > 1
        assert re.fullmatch(r"[\w ]+".join(map(re.escape, kept)), targets)
