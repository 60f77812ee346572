"""The model class of lm-evaluation-harness, where the harness is installed."""

import sys
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from t5xpg import api
from t5xpg.data.batch import ENC_DEC
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.likelihood import PREFIX, LikelihoodScorer
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from tests.refusals import refused
from tests.small_models import SIZES


def test_what_to_type_without_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.instance", None)
    monkeypatch.delitem(sys.modules, "t5xpg.lm_eval", raising=False)
    with refused("pip install lm-eval"):
        import t5xpg.lm_eval  # noqa: F401


def test_the_harness_gets_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    registry = pytest.importorskip("lm_eval.api.registry")
    import t5xpg.lm_eval  # noqa: F401

    def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
        return [instance(kind, {}, one, number) for number, one in enumerate(arguments)]

    def generate(texts: list[str], **options: Any) -> list[str]:
        asked.append((texts, options))
        return [f"{text}. More" for text in texts]

    asked: list[Any] = []
    model, vocabulary = EncoderDecoderModel(T5Config(**{**SIZES, "vocab_size": 384})), Vocabulary()
    params = model.init(jax.random.key(0))
    dataset = SimpleNamespace(converter=ENC_DEC, task_feature_lengths={"inputs": 48, "targets": 16})  # of validation
    loaded = SimpleNamespace(
        experiment=SimpleNamespace(model=model, eval_dataset=dataset, lengths={"inputs": 24, "targets": 8}),
        params=params, vocabulary=vocabulary, generate=generate,
    )  # fmt: skip
    monkeypatch.setattr(api, "load", lambda name, step: loaded if (name, step) == ("mine", 20) else None)
    create = registry.get_model("t5xpg").create_from_arg_string
    harness = create(f"run=mine,step=20,scoring={PREFIX}", {"batch_size": "auto", "device": None})

    pairs = [("the owl", "s"), ("", "owl")]
    scorer = LikelihoodScorer(model, params, vocabulary, scoring=PREFIX)
    assert harness.loglikelihood(requests("loglikelihood", *pairs)) == scorer.scores(pairs)
    with refused("language models"):
        harness.loglikelihood_rolling(requests("loglikelihood_rolling", ("a",)))

    beams = {"until": ["."], "max_gen_toks": 8, "num_beams": 2}
    drawn = {"do_sample": True, "temperature": 0.7, "top_k": 5}
    said = harness.generate_until(requests("generate_until", ("a", beams), ("b", drawn), ("c", beams)))
    assert said == ["a", "b. More", "c"]
    assert asked == [
        (["a", "c"], {"max_decode_length": 8, "num_beams": 2}),
        (["b"], {"max_decode_length": 256, "method": "sample", "temperature": 0.7, "topk": 5}),
    ]
    with refused("repetition_penalty"):
        harness.generate_until(requests("generate_until", ("a", {"repetition_penalty": 2.0})))
