"""config.json of the families of T5: sizes as published, who divides the output by sqrt(D), and what is refused."""

import json
import math
from typing import Any

import pytest

from t5xpg.exchange.huggingface.config import (
    config_from_transformers,
    config_to_transformers,
    head_factor_from_transformers,
    head_factor_to_transformers,
    scales_outputs,
)
from t5xpg.models.encoder_decoder import EncoderDecoderModel, T5Config
from t5xpg.models.parts import Heads
from t5xpg.models.positions import Buckets
from tests.refusals import refused

SMALL: dict[str, Any] = {"d_model": 16, "d_kv": 4, "d_ff": 20, "num_heads": 4, "num_layers": 2, "vocab_size": 48}


def test_there_and_back() -> None:
    for settings in (
        {"vocab_size": 384, "num_decoder_layers": 4, "dropout_rate": 0.1},
        {"vocab_size": 32128, "mlp_activations": ("relu",), "logits_via_embedding": True},
        {"vocab_size": 99, "head_dim": 3, "positions": Buckets(max_distance=64), "mlp_activations": ("silu", "linear")},
        {"vocab_size": 99, "positions": Buckets(in_every_layer=True), "logits_via_embedding": True},
    ):
        config = T5Config(**settings)
        written = json.loads(json.dumps(config_to_transformers(config)))
        is_umt5 = config.has_table_in_every_layer
        assert written["model_type"] == ("umt5" if is_umt5 else "t5")
        assert written["architectures"] == [f"{'UMT5' if is_umt5 else 'T5'}ForConditionalGeneration"]
        assert written["tie_word_embeddings"] == config.logits_via_embedding
        has_own_head = not config.logits_via_embedding
        assert config_from_transformers(written, has_own_head) == config
        factor = head_factor_to_transformers(config) * head_factor_from_transformers(written, has_own_head)
        assert factor == pytest.approx(1.0)


MT5: dict[str, Any] = {
    "model_type": "mt5", "d_ff": 1024, "d_kv": 64, "d_model": 512, "num_heads": 6, "num_layers": 8,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "vocab_size": 250112,
}  # fmt: skip
BYT5 = {**MT5, "model_type": "t5", "d_ff": 3584, "d_model": 1472, "num_layers": 12, "num_decoder_layers": 4}
T5 = {"d_ff": 2048, "d_kv": 64, "d_model": 512, "num_heads": 8, "num_layers": 6, "vocab_size": 32128}


def test_sizes_as_published() -> None:
    """The small models of each family, and the numbers of parameters that their papers and cards name."""
    for given, num_params, tied in (
        (T5, 60_506_624, True),
        ({**MT5, "model_type": "t5", "vocab_size": 32128}, 76_961_152, False),
        ({**BYT5, "vocab_size": 384}, 299_637_760, False),
        # as transformers 5 writes an untied model
        ({**BYT5, "vocab_size": 384, "tie_word_embeddings": True, "scale_decoder_outputs": False}, 299_637_760, False),
        (MT5, 300_176_768, False),
        # 6,272 rows more in two matrices, and 14 tables of 32 buckets and 6 heads more
        ({**MT5, "model_type": "umt5", "vocab_size": 256384}, 300_176_768 + 2 * 6272 * 512 + 14 * 32 * 6, False),
    ):
        config = config_from_transformers(given, has_own_head=not tied)
        assert (EncoderDecoderModel(config).num_params, config.logits_via_embedding) == (num_params, tied)
        assert config.has_table_in_every_layer == (given.get("model_type") == "umt5")


# by model type, version of transformers, whether it says that it is tied, and that it divides
DIVIDES = {
    ("t5", "4.30.0", True, None): True, ("t5", "4.30.0", False, None): False, ("t5", "5.23.0", True, False): False,
    ("t5", "5.23.0", True, True): True, ("mt5", "4.30.0", False, None): False, ("mt5", "4.30.0", True, None): True,
    ("mt5", "5.23.0", True, None): False, ("umt5", "4.31.0", False, None): False, ("umt5", "4.31.0", True, None): True,
    ("umt5", "5.23.0", True, None): True, ("umt5", None, False, True): True,
}  # fmt: skip


def test_who_divides_outputs() -> None:
    for (model_type, version, tied, said), scales in DIVIDES.items():
        given = {**SMALL, "model_type": model_type, "tie_word_embeddings": tied}
        given |= {"transformers_version": version, "scale_decoder_outputs": said}
        given = {name: value for name, value in given.items() if value is not None}
        assert scales_outputs(given) == scales, given
        # a matrix of its own behind a divided output becomes one behind an output that is not
        expected = 1 / math.sqrt(16) if model_type == "umt5" and scales else 1.0
        assert head_factor_from_transformers(given, has_own_head=True) == expected
        assert head_factor_from_transformers(given, has_own_head=False) == 1.0
        assert config_from_transformers(given, has_own_head=False).logits_via_embedding == scales


def test_other_values_as_they_are_written() -> None:
    assert config_from_transformers({**SMALL, "feed_forward_proj": "gated-gelu_new"}).mlp_activations[0] == "gelu"
    assert config_from_transformers({**SMALL, "num_decoder_layers": None}).num_decoder_layers == 2
    assert config_from_transformers({**SMALL, "model_type": "mt5"}).mlp_activations == ("gelu", "linear")
    assert config_to_transformers(T5Config(vocab_size=9), eos_id=5)["eos_token_id"] == 5


CANNOT_BE_READ: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mt6"}, "Did you mean mt5"),
    ({"model_type": "udop"}, "layers are not T5's"),
    ({"model_type": "longt5", "encoder_attention_type": "global"}, "encoder_attention_type is 'global'"),
    ({"feed_forward_proj": "gated-gelo"}, "Did you mean gated-gelu"),
    ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon is 1e-05"),
    ({"layer_norm_epsilon": math.nan}, "layer_norm_epsilon is nan"),
    ({"model_type": ["t5"]}, "model_type is ['t5']"),
    ({"feed_forward_proj": ["relu"]}, "feed_forward_proj is ['relu']"),
    ({"model_type": "longt5", "local_radius": math.inf}, "local_radius is inf"),
    ({"num_layers": 10**9}, "num_encoder_layers is 1000000000"),
    ({"pad_token_id": 3}, "pad_token_id is 3"),
    ({"decoder_start_token_id": 2}, "decoder_start_token_id is 2"),
    ({"vocab_size": "many"}, "T5Config.vocab_size is 'many'"),
    ({"d_kv": 0}, "T5Config.head_dim is 0"),
    ({"d_ff": None}, "no 'd_ff'"),
]


def test_what_cannot_be_said_in_the_other_configuration() -> None:
    for changes, named in CANNOT_BE_READ:
        given = {**SMALL, **changes}
        with refused(named):
            config_from_transformers({key: value for key, value in given.items() if value is not None})
    with refused("qk_norm"):
        config_to_transformers(T5Config(vocab_size=99, heads=Heads(qk_norm=True)))
