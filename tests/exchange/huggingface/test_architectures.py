"""What other architectures are in transformers computes what they compute: read back as what transformers has."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.huggingface.architectures import SEQ2SEQ, TOKENS, Exported, in_transformers
from t5xpg.exchange.huggingface.config import config_from_transformers, head_factor_from_transformers
from t5xpg.exchange.huggingface.params import has_own_head, params_from_transformers
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.model import Model
from t5xpg.models.parts import Ngrams
from t5xpg.models.positions import Buckets, Rotary
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from tests.refusals import refused
from tests.small_models import seq2seq

BYTES = Vocabulary("bytes", extra_ids=125)
B, S, T = 3, 20, 12
every_kind = pytest.mark.parametrize("every_layer", [False, True], ids=["t5", "umt5"])


def made(kind: type[Model], every_layer: bool = False, tied: bool = False) -> tuple[Model, Any]:
    model = kind(
        T5Config(
            vocab_size=390, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24, num_encoder_layers=2, num_decoder_layers=2,
            logits_via_embedding=tied, positions=Buckets(in_every_layer=every_layer),
        )
    )  # fmt: skip
    params = model.init(jax.random.key(0))
    tables = functools.partial(jax.tree_util.tree_map_with_path, lambda path, x: 3 * x if "rel_" in str(path) else x)
    return model, tables(params)


def exported(model: Model, params: Any, **options: bool) -> Exported:
    return in_transformers(model, params, BYTES, **{"prefix_lm": False, **options})


def read_back(found: Exported) -> tuple[EncoderDecoderModel, Any]:
    own = has_own_head(found.tensors)
    config = config_from_transformers(found.config, own)
    factor = head_factor_from_transformers(found.config, own)
    return EncoderDecoderModel(config), params_from_transformers(found.tensors, config, factor)


def tokens(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, 384, (B, length)).astype(np.int32)


def batch() -> dict[str, np.ndarray]:
    return seq2seq(np.where(np.arange(S) < [[S], [9], [4]], tokens(S), 0), tokens(T, seed=1))


def logits(model: Model, params: Any, given: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(jax.jit(model.logits)(params, given))


def check(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-5 * float(np.abs(expected).max()), rtol=0)


@every_kind
def test_an_encoder_that_is_the_decoder(every_layer: bool) -> None:
    model, params = made(SharedEncoderDecoderModel, every_layer)
    found = exported(model, params)
    assert found.auto_class == SEQ2SEQ
    assert found.notes
    theirs, read = read_back(found)
    check(logits(theirs, read, batch()), logits(model, params, batch()))


@every_kind
def test_a_decoder_alone(every_layer: bool) -> None:
    model, params = made(DecoderOnlyModel, every_layer)
    found = exported(model, params)
    assert (found.auto_class, found.prompted) == (SEQ2SEQ, True)
    assert "decoder_input_ids" in found.notes[0]
    theirs, read = read_back(found)
    assert theirs.config.num_encoder_layers == 1
    answers = logits(theirs, read, batch())
    check(answers, logits(model, params, batch()))
    # whatever the encoder reads
    other = {**batch(), "encoder_input_tokens": np.ones((B, 1), np.int32)}
    np.testing.assert_array_equal(answers, logits(theirs, read, other))


@pytest.mark.parametrize(("every_layer", "tied"), [(False, False), (True, True)], ids=["t5", "umt5_tied"])
def test_an_encoder_alone(every_layer: bool, tied: bool) -> None:
    model, params = made(EncoderOnlyModel, every_layer, tied)
    found = exported(model, params)
    assert found.auto_class == TOKENS
    assert found.config["architectures"] == [f"{'UMT5' if every_layer else 'T5'}ForTokenClassification"]
    labels = found.config["id2label"]
    named = {"0": "<pad>", "1": "</s>", "100": "<0x61>", "383": "<extra_id_0>", "384": "#384"}
    assert (len(labels), {token: labels[token] for token in named}) == (390, named)
    assert found.config["label2id"] == {label: int(token) for token, label in labels.items()}
    # the encoder is that of an encoder-decoder with a decoder of any kind
    prefix = "transformer."
    encoder = {name.removeprefix(prefix): x for name, x in found.tensors.items() if name.startswith(prefix)}
    assert all(name.startswith(("encoder.", "shared.")) for name in encoder)
    whole = EncoderDecoderModel(T5Config(**{**vars(model.config), "logits_via_embedding": True}))
    other = exported(whole, whole.init(jax.random.key(1))).tensors
    read = params_from_transformers({**other, **encoder}, whole.config)
    inputs = batch()["encoder_input_tokens"]
    encoded = jax.jit(whole.encode)(read, inputs)
    found_logits = encoded @ found.tensors["classifier.weight"].T + found.tensors["classifier.bias"]
    check(found_logits, logits(model, params, {"encoder_input_tokens": inputs}))


def test_what_transformers_has_nothing_for() -> None:
    model, params = made(DecoderOnlyModel)
    with refused("no architecture", "inputs see all of themselves"):
        exported(model, params, prefix_lm=True)

    class MyModel(EncoderDecoderModel):
        pass

    gemma = {"positions": Rotary(), "layer_norms": "both"}
    for kind, settings, named in (
        (MyModel, {}, "MyModel"),
        (EncoderDecoderModel, {**gemma, "embeddings": Ngrams(lengths=(3,))}, "ngram"),
        (DecoderOnlyModel, {"mlp_activations": ("tanh",)}, "no MLP with the activations"),
    ):
        other = kind(T5Config(**{**vars(model.config), **settings}))
        with refused(named):
            exported(other, other.init(jax.random.key(0)))
