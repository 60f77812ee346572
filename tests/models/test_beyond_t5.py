"""What later models changed of T5, each option by itself and together: against a plain program in float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from tests.models import plain_transformer
from tests.refusals import refused
from tests.small_models import relative_l2, seq2seq, with_layers_of

SIZES: dict[str, Any] = {
    "vocab_size": 29, "emb_dim": 12, "num_heads": 4, "head_dim": 6, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "mlp_dim": 14,
}  # fmt: skip
# of models with windows: a third layer has the first one's window again
THREE_LAYERS: dict[str, Any] = {"num_encoder_layers": 3, "num_decoder_layers": 3}
# of options that are the same in every layer
ONE_LAYER: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1}
NO_BIAS = {"relative_attention_bias": False}
ROTARY = {**NO_BIAS, "rotary_base": 100.0}
T5GEMMA = {
    **ROTARY, "num_kv_heads": 2, "layer_norms": "both", "attention_logit_softcap": 1.5, "logit_softcap": 2.0,
    "encoder_window": (3, 3), "decoder_window": 2, "logits_via_embedding": True, "share_embeddings": False,
    "decoder_start_token_id": 2, **THREE_LAYERS,
}  # fmt: skip
T5GEMMA2 = {
    **ROTARY, "num_kv_heads": 1, "layer_norms": "both", "qk_norm": True, "merged_attention": True,
    "rotary_local_base": 7.0, "rotary_scale": 8.0, "encoder_window": (2, 3), "decoder_window": 3,
    "sliding_window_pattern": 3, "logits_via_embedding": True, "mlp_activations": ("silu", "linear"),
    **THREE_LAYERS,
}  # fmt: skip
REDLLM = {**ROTARY, "rotary_cross_attention": True, "qk_norm": True, "rotary_local_base": 7.0}
GLOBAL: dict[str, Any] = {"encoder_window": (2, 1), "sliding_window_pattern": 3, "encoder_global_block": 4}
UNBALANCED = {
    "share_embeddings": False, "encoder_emb_dim": 10, "encoder_num_heads": 2, "encoder_mlp_dim": 9, "num_kv_heads": 2,
    "encoder_num_kv_heads": 1,
}  # fmt: skip
NGRAMS: dict[str, Any] = {"ngram_lengths": (1, 4, 3), "ngram_buckets": 16}
OPTIONS: dict[str, dict[str, Any]] = {
    "t5": {},
    "post": {"layer_norms": "post"},
    "no positions": NO_BIAS | ONE_LAYER,
    "rotary and bias": {"rotary_base": 50.0, "relpos_bias_in_every_layer": True},
    "windows": {"encoder_window": (2, 1), "decoder_window": 1, **THREE_LAYERS},
    "global": GLOBAL,
    "merged": {"merged_attention": True, "num_kv_heads": 1},
    "merged, rotary": {**REDLLM, "merged_attention": True},
    "n-grams": NGRAMS | ONE_LAYER,
    "n-grams of two embeddings": {**NGRAMS, "share_embeddings": False, "decoder_start_token_id": 3, **ONE_LAYER},
    "unbalanced": UNBALANCED | ONE_LAYER,
    "unbalanced t5gemma": T5GEMMA | UNBALANCED,
    "redllm": REDLLM,
    "t5gemma": T5GEMMA,
    "t5gemma2": T5GEMMA2,
}
PAIRS = [([5, 7, 9, 3, 8, 4, 6, 2, 11], [4, 6, 8, 1, 3, 2, 9]), ([12, 3, 4], [22, 21]), ([7, 1, 2, 28], [9])]


def model_of(name: str, **more: Any) -> EncoderDecoderModel:
    return EncoderDecoderModel(T5Config(**{**SIZES, **OPTIONS[name], **more}))


def parameters(model: EncoderDecoderModel) -> Any:
    """Parameters of which each matters: norms are not 1, and differences of positions are large."""
    keys = iter(jax.random.split(jax.random.key(3), 500))

    def changed(path: Any, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if "scale" in name or "ngram" in name:
            return leaf + 0.3 * jax.random.normal(next(keys), leaf.shape)
        return 3.0 * leaf if "rel_embedding" in name or "query" in name else leaf

    return jax.tree_util.tree_map_with_path(changed, model.init(jax.random.key(0)))


def padded(texts: list[list[int]]) -> np.ndarray:
    longest = max(map(len, texts)) + 2
    return np.asarray([text + [0] * (longest - len(text)) for text in texts], np.int32)


def batch() -> dict[str, np.ndarray]:
    return seq2seq(padded([inputs for inputs, _ in PAIRS]), padded([targets for _, targets in PAIRS]))


def packed() -> dict[str, np.ndarray]:
    """All pairs in one row, and padding behind them."""
    found: dict[str, list[int]] = {}
    for number, (inputs, targets) in enumerate(PAIRS, start=1):
        parts = {"encoder_input_tokens": inputs, "encoder_segment_ids": [number] * len(inputs)}
        parts |= {"decoder_target_tokens": targets, "decoder_input_tokens": [0, *targets[:-1]]}
        for name, part in {**parts, "decoder_segment_ids": [number] * len(targets)}.items():
            found.setdefault(name, []).extend(part)
    return {name: np.asarray([[*row, 0, 0]], np.int32) for name, row in found.items()}


@functools.cache
def expected(name: str) -> tuple[Any, list[np.ndarray]]:
    """Parameters of an option's model, and the logits of all pairs."""
    model = model_of(name)
    params = parameters(model)
    return params, [plain_transformer.logits(params, model.config, *pair) for pair in PAIRS]


@pytest.mark.parametrize("name", OPTIONS)
def test_logits(name: str) -> None:
    """Of padded rows and of packed ones."""
    params, theirs = expected(name)
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(model_of(name).logits)
        rows, together = logits(params, batch()), logits(params, packed())[0]
    for row, logits in zip(rows, theirs, strict=True):
        assert relative_l2(row[: len(logits)], logits) < 1e-5
    assert relative_l2(together[:-2], np.concatenate(theirs)) < 1e-5


def loss_and_gradients(model: EncoderDecoderModel, params: Any, batch: Any) -> tuple[jax.Array, Any]:
    def loss(params: Any) -> jax.Array:
        logits, targets = model.logits(params, batch), batch["decoder_target_tokens"]
        found = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(targets > 0, found, 0.0))

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("t5gemma", {"attention_chunk_size": 4, "scan_layers": True, "remat_policy": "dots"}),
        ("t5gemma2", {"scan_layers": True, "remat_policy": "full"}),
        ("redllm", {"attention_chunk_size": 3, "scan_layers": True}),
        ("windows", {"attention_chunk_size": 3, "remat_policy": "full"}),
    ],
)
def test_ways_to_compute(name: str, more: dict[str, Any]) -> None:
    """By chunks, scanned and rematerialised: the loss and its gradients are the same."""
    model, other, (params, _) = model_of(name), model_of(name, **more), expected(name)

    def as_theirs(tree: Any) -> Any:
        return with_layers_of(tree, other.abstract_params())

    loss, gradients = loss_and_gradients(model, params, packed())
    their_loss, theirs = loss_and_gradients(other, as_theirs(params), packed())
    np.testing.assert_allclose(their_loss, loss, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5), theirs, as_theirs(gradients))


@pytest.mark.parametrize("name", ["redllm", "t5gemma", "t5gemma2"])
def test_bfloat16(name: str) -> None:
    params, theirs = expected(name)
    rough = jax.jit(model_of(name, dtype="bfloat16").logits)(params, batch())
    assert rough.dtype == jnp.float32
    for row, exact in zip(rough, theirs, strict=True):
        assert relative_l2(row[: len(exact)], exact) < 0.05


def test_attention_over_the_source() -> None:
    """Of a separate attention the weights add up to 1; of a merged one to what is not on the own positions."""
    for name, is_merged in (("t5gemma", False), ("t5gemma2", True)):
        model = model_of(name)
        weights = np.asarray(jax.jit(model.source_attention)(expected(name)[0], batch()))
        assert weights.shape == (3, model.config.num_decoder_layers, 4, 9, 11)
        sums = weights.sum(axis=-1)[0]
        assert (sums < 0.999).any() == is_merged
        assert (sums < 1.001).all()
        assert (weights[1, ..., 3:] == 0).all()  # padding


def test_operations() -> None:
    """Fewer heads of keys and values and a merged attention spare products."""
    lengths = {"inputs": 10, "targets": 6}
    plain = model_of("t5").flops_per_example(lengths)
    head = 2 * 12 * 6  # of one position
    assert plain - model_of("t5", num_kv_heads=2).flops_per_example(lengths) == 3 * 2 * 2 * 2 * head * (10 + 6 + 10)
    fewer = model_of("t5", num_kv_heads=1).flops_per_example(lengths)
    assert fewer - model_of("merged").flops_per_example(lengths) == 3 * 2 * 2 * 4 * head * 6


CANNOT_BE: list[tuple[dict[str, Any], str]] = [
    ({"num_kv_heads": 3}, "T5Config.num_kv_heads is 3"),
    ({"layer_norms": "before"}, "Known: both, post, pre"),
    ({"rotary_base": 10.0, "head_dim": 5}, "T5Config.head_dim is 5"),
    ({"rotary_cross_attention": True}, "without rotary_base"),
    ({"encoder_window": 3}, "T5Config.encoder_window is 3"),
    ({"encoder_global_block": 4}, "encoder_window is None"),
    ({**GLOBAL, "sliding_window_pattern": 2}, "sliding_window_pattern is 2"),
    ({**GLOBAL, "rotary_base": 9.0}, "T5Config.rotary_base is 9.0"),
    ({"attention_logit_softcap": 0.0}, "T5Config.attention_logit_softcap is 0.0"),
    ({"rotary_scale": "8"}, "T5Config.rotary_scale is '8'"),
    ({"encoder_num_heads": 3, "num_kv_heads": 2}, "encoder_num_kv_heads is None"),
    ({"encoder_emb_dim": 16}, "share_embeddings is True"),
    ({"encoder_mlp_dim": 0}, "encoder_mlp_dim is 0"),
    ({"decoder_start_token_id": 29}, "T5Config.decoder_start_token_id is 29"),
    ({"ngram_lengths": (3, 0)}, "ngram_lengths is (3, 0)"),
    ({"ngram_buckets": 16}, "without ngram_lengths"),
    ({"merged_attention": True, "attention_chunk_size": 4}, "attention_chunk_size is 4"),
    ({"relative_attention_bias": False, "relpos_bias_in_every_layer": True}, "without relative_attention_bias"),
]


def test_settings_that_no_model_can_have() -> None:
    for settings, named in CANNOT_BE:
        with refused(named):
            T5Config(**{**SIZES, **settings})


def test_a_stack_alone_has_nothing_of_the_other() -> None:
    for kind, settings in (
        (DecoderOnlyModel, {"merged_attention": True, "share_embeddings": False}),
        (DecoderOnlyModel, {"encoder_window": (4, 4)}),
        (EncoderOnlyModel, {"decoder_window": 4}),
    ):
        with refused(kind.__name__, *settings):
            kind(T5Config(**SIZES, **settings)).abstract_params()
