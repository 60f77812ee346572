"""Allowed answers from texts to predictions: a real small model, and answers that are refused."""

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from t5xpg.api import Model
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import parse_fields
from t5xpg.data.vocab.files import vocabulary_of_file
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.allowed import constraint_of, with_allowed
from t5xpg.evaluate.predictor import Answer, Predictor
from t5xpg.experiment import config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.models import decoding
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.decoding.answer_set import token_rows
from tests.refusals import refused
from tests.small_models import SIZES, seq2seq
from tests.small_tokenizers import sentencepiece_model

ANSWERS = ("no", "not yet", "yes", "yes, and no", "ähm", "maybe")
TEXTS = ["Is it so?", "Was it?"]


@pytest.fixture(scope="module")
def loaded() -> LoadedConfig:
    sizes = [f"encoder_decoder.T5Config.{name}={value}" for name, value in SIZES.items() if name != "vocab_size"]
    return config.load("byt5_tiny", [*sizes, "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}"])


@pytest.fixture(scope="module")
def params(loaded: LoadedConfig) -> Any:
    return loaded.experiment.model.init(jax.random.key(5))


def replace_decoding(loaded: LoadedConfig, options: DecodingConfig) -> LoadedConfig:
    return dataclasses.replace(loaded, experiment=dataclasses.replace(loaded.experiment, decoding=options))


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
        allowed = with_allowed(replace_decoding(loaded, method), str(file)).experiment.decoding
        found = answers(loaded, params, allowed)
        assert {text for answer in found for text in answer.texts} <= set(ANSWERS)
        same = dataclasses.replace(allowed, allowed=(*ANSWERS, "yes"))
        assert allowed.settings() == same.settings() != method.settings()
    assert with_allowed(loaded, None) is loaded


def test_a_thousand_answers_of_pieces_have_the_scores_of_targets(loaded: LoadedConfig, tmp_path: Path) -> None:
    vocabulary = vocabulary_of_file(Path(sentencepiece_model(tmp_path / "spiece.model")), 8)
    model = dataclasses.replace(
        loaded.experiment.model, config=dataclasses.replace(loaded.experiment.model.config, vocab_size=vocabulary.size)
    )
    syllables = ["".join(one) for one in itertools.product("bdgk", "aeo", "lmn")]
    texts = [" ".join(one) for one in itertools.product(syllables, repeat=2)][:990]
    texts += [f"{one} b" for one in texts[:10]]  # of which others are the beginning
    params = model.init(jax.random.key(1))
    experiment = dataclasses.replace(
        loaded.experiment, model=model, decoding=DecodingConfig("rank", num_decodes=1000, allowed=tuple(texts))
    )
    one = Predictor(experiment, params, vocabulary)
    inputs = one.encode(["bal dem"])
    (found,) = one.answers(inputs)
    targets = token_rows([vocabulary.encode(text) for text in texts], vocabulary.eos_id)
    batch = seq2seq(np.repeat(inputs, len(texts), axis=0), targets)
    expected = np.asarray(jax.jit(decoding.score, static_argnums=0)(model, params, batch))
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, np.sort(expected)[::-1], rtol=1e-5)
    np.testing.assert_allclose([expected[texts.index(text)] for text in found.texts], found.scores, rtol=1e-5)


@pytest.mark.parametrize("options", [DecodingConfig(), DecodingConfig("beam"), DecodingConfig("sample", num_decodes=4)])
def test_predictions_match_a_pattern(loaded: LoadedConfig, params: Any, options: DecodingConfig) -> None:
    pattern = "(ab|ö)+[0-9]{1,3}"
    options = with_allowed(replace_decoding(loaded, options), None, pattern).experiment.decoding
    found = answers(loaded, params, options)
    assert all(re.fullmatch(pattern, text) for answer in found for text in answer.texts)
    assert options.settings()["pattern"] == pattern
    long, other = (dataclasses.replace(options, pattern=f"{pattern * 9}{end}").settings()["pattern"] for end in "ab")
    assert long != other
    assert max(len(long), len(other)) < 60


def test_targets_are_the_labels_of_the_training_split(
    loaded: LoadedConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path / "data"))
    for name, fields in (("reviews", "text,label"), ("stories", "text")):
        rows = [{"text": f"This is review {i} of many. " * 5, "label": "good" if i % 2 else "bad"} for i in range(60)]
        lines = (json.dumps({field: row[field] for field in fields.split(",")}) for row in rows)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        export_dataset(
            name,
            data_dir=tmp_path / "data",
            files={None: [tmp_path / f"{name}.jsonl"]},
            fields=None if fields == "text" else parse_fields(fields),
        )
    assert with_allowed(loaded, "targets", task="reviews_classify").experiment.decoding.allowed == ("bad", "good")
    for task in ("stories_span_corruption", "pydocs_span_corruption", "squad", "mine"):
        with refused("ALLOWED=targets", task):
            with_allowed(loaded, "targets", task=task)


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
    with refused("pattern", "allowed"):
        DecodingConfig(allowed=("yes",), pattern="yes")
    long = dataclasses.replace(loaded.experiment, decoding=DecodingConfig(pattern="(yes){6}"))
    with refused("PATTERN=(yes){6}", "19 tokens", "max_decode_length=19"):
        constraint_of(long, Vocabulary())
