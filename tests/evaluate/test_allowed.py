"""Allowed answers from texts to predictions: a real small model, and answers that are refused."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t5xpg.api import Model
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.allowed import constraint_of, with_allowed
from t5xpg.evaluate.predictor import Answer, Predictor
from t5xpg.experiment import config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.models import decoding
from t5xpg.models.decoding import DecodingConfig
from tests.refusals import refused
from tests.small_models import SIZES, seq2seq

ANSWERS = ("no", "not yet", "yes", "yes, and no", "ähm", "maybe")
TEXTS = ["Is it so?", "Was it?"]


@pytest.fixture(scope="module")
def loaded() -> LoadedConfig:
    sizes = [f"encoder_decoder.T5Config.{name}={value}" for name, value in SIZES.items() if name != "vocab_size"]
    return config.load("byt5_tiny", [*sizes, "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}"])


@pytest.fixture(scope="module")
def params(loaded: LoadedConfig) -> Any:
    return loaded.experiment.model.init(jax.random.key(5))


def predictor(loaded: LoadedConfig, params: Any, options: DecodingConfig) -> Predictor:
    return Predictor(dataclasses.replace(loaded.experiment, decoding=options), params, Vocabulary())


def answers(loaded: LoadedConfig, params: Any, options: DecodingConfig) -> list[Answer]:
    one = predictor(loaded, params, options)
    return one.answers(one.encode(TEXTS))


def scores_one_by_one(loaded: LoadedConfig, params: Any, texts: Sequence[str]) -> np.ndarray:
    """[texts, answers] log likelihoods, each answer as the targets of a row."""
    vocabulary, model = Vocabulary(), loaded.experiment.model
    one = predictor(loaded, params, DecodingConfig())
    rows = [[*vocabulary.encode(answer), vocabulary.eos_id] for answer in ANSWERS]
    targets = np.zeros((len(rows), 16), np.int32)
    for row, ids in zip(targets, rows, strict=True):
        row[: len(ids)] = ids
    batches = [seq2seq(np.repeat(inputs[None], len(rows), axis=0), targets) for inputs in one.encode(texts)]
    return np.stack([jax.jit(decoding.score, static_argnums=0)(model, params, batch) for batch in batches])


def test_ranked_answers_have_the_scores_of_targets(loaded: LoadedConfig, params: Any) -> None:
    expected = scores_one_by_one(loaded, params, TEXTS)
    ranked = answers(loaded, params, DecodingConfig("rank", num_decodes=len(ANSWERS), allowed=ANSWERS))
    wide = answers(loaded, params, DecodingConfig("beam", num_decodes=8, alpha=0.0, allowed=ANSWERS))
    for row, answer, found in zip(expected, ranked, wide, strict=True):
        order = np.argsort(-row)
        assert answer.texts == found.texts == [ANSWERS[place] for place in order]  # of eight beams, two have no answer
        np.testing.assert_allclose(answer.scores or (), row[order], atol=1e-4)
        np.testing.assert_allclose(found.scores or (), row[order], atol=1e-4)


def test_a_file_of_answers_holds_for_predictions_of_each_method(
    loaded: LoadedConfig, params: Any, tmp_path: Path
) -> None:
    file = tmp_path / "answers.txt"
    file.write_text("\r\n".join([*ANSWERS, "", "yes"]), encoding="utf-8-sig", newline="")
    for method in (DecodingConfig(), DecodingConfig("sample", num_decodes=3, topk=4)):
        own = dataclasses.replace(loaded.experiment, decoding=method)
        allowed = with_allowed(dataclasses.replace(loaded, experiment=own), str(file)).experiment.decoding
        found = answers(loaded, params, allowed)
        assert {text for answer in found for text in answer.texts} <= set(ANSWERS)
        same = dataclasses.replace(allowed, allowed=(*ANSWERS, "yes"))
        assert allowed.settings() == same.settings() != method.settings()
    assert with_allowed(loaded, None) is loaded


def test_a_model_with_nan_still_answers_as_before(loaded: LoadedConfig, params: Any) -> None:
    broken = jax.tree.map(lambda leaf: leaf * np.nan, params)
    for method in (DecodingConfig(), DecodingConfig("beam"), DecodingConfig("sample", num_decodes=2)):
        assert [len(answer.texts) for answer in answers(loaded, broken, method)] == [method.decodes] * len(TEXTS)


def test_generate_takes_a_list(loaded: LoadedConfig, params: Any) -> None:
    model: Any = Model.__new__(Model)
    model.experiment, model.vocabulary, model.params, model._predictors = loaded.experiment, Vocabulary(), params, {}
    assert set(model.generate(TEXTS, allowed=["yes", "no"])) <= {"yes", "no"}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ["answers.txt", "empty"]),
        ("\n\n", ["answers.txt", "empty"]),
        ("yes\n\nthis one is much too long\n", ["answers.txt:3", "26 tokens", "16", "max_decode_length=26"]),
    ],
)
def test_answers_that_cannot_be_given_are_named(
    loaded: LoadedConfig, tmp_path: Path, content: str, named: list[str]
) -> None:
    (tmp_path / "answers.txt").write_text(content, encoding="utf-8")
    with refused(*named):
        constraint_of(with_allowed(loaded, str(tmp_path / "answers.txt")).experiment, Vocabulary())


def test_files_that_are_no_text_and_methods_without_answers_are_refused(loaded: LoadedConfig, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xfe\xfd")
    for name in ("picture", "missing"):
        with refused(str(tmp_path / name), "ALLOWED"):
            constraint_of(with_allowed(loaded, str(tmp_path / name)).experiment, Vocabulary())
    ranking = dataclasses.replace(loaded.experiment, decoding=DecodingConfig("rank"))
    with refused("rank", "ALLOWED"):
        constraint_of(ranking, Vocabulary())
    surrogate = dataclasses.replace(loaded.experiment, decoding=DecodingConfig(allowed=("yes", "a\ud800")))
    with refused("Answer 2", "spell"):
        constraint_of(surrogate, Vocabulary())
    with refused("extra_length", "allowed"):
        DecodingConfig(allowed=("yes",), extra_length=3)
