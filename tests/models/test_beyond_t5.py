"""What later models changed of T5, each option by itself and together: against a plain program in float64."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.model import Model
from t5xpg.models.parts import Embeddings, EncoderSizes, Heads, Ngrams, Windows
from t5xpg.models.positions import Buckets, Rotary
from tests.models import plain_transformer
from tests.refusals import refused
from tests.small_models import ONE_LAYER, relative_l2, seq2seq, with_layers_of

SIZES: dict[str, Any] = {
    "vocab_size": 29, "emb_dim": 12, "num_heads": 4, "head_dim": 6, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "mlp_dim": 14,
}  # fmt: skip
# of models with windows: a third layer has the first one's window again
THREE_LAYERS: dict[str, Any] = {"num_encoder_layers": 3, "num_decoder_layers": 3}
ROTARY = Rotary(base=100.0)
T5GEMMA: dict[str, Any] = {
    "positions": ROTARY, "heads": Heads(num_kv_heads=2, logit_softcap=1.5), "layer_norms": "both", "logit_softcap": 2.0,
    "windows": Windows((3, 3), 2), "logits_via_embedding": True, "embeddings": Embeddings(shared=False),
    "decoder_start_token_id": 2, **THREE_LAYERS,
}  # fmt: skip
T5GEMMA2: dict[str, Any] = {
    "positions": Rotary(base=100.0, local_base=7.0, scale=8.0), "layer_norms": "both",
    "heads": Heads(num_kv_heads=1, qk_norm=True, merged=True), "windows": Windows((2, 3), 3, pattern=3),
    "logits_via_embedding": True, "mlp_activations": ("silu", "linear"), **THREE_LAYERS,
}  # fmt: skip
REDLLM: dict[str, Any] = {
    "positions": Rotary(base=100.0, local_base=7.0, cross_attention=True), "heads": Heads(qk_norm=True),
}  # fmt: skip
GLOBAL: dict[str, Any] = {"windows": Windows((2, 1), pattern=3, global_block=4)}
UNBALANCED: dict[str, Any] = {
    "embeddings": Embeddings(shared=False), "heads": Heads(num_kv_heads=2),
    "encoder_sizes": EncoderSizes(emb_dim=10, num_heads=2, num_kv_heads=1, mlp_dim=9),
}  # fmt: skip
NGRAMS: dict[str, Any] = {"embeddings": Ngrams(lengths=(1, 4, 3), buckets=16)}
OPTIONS: dict[str, dict[str, Any]] = {
    "t5": {},
    "post": {"layer_norms": "post"},
    "no positions": {"positions": None, **ONE_LAYER},
    "tables in every layer": {"positions": Buckets(in_every_layer=True)},
    "windows": {"windows": Windows((2, 1), 1), **THREE_LAYERS},
    "global": GLOBAL,
    "merged": {"heads": Heads(num_kv_heads=1, merged=True)},
    "merged, rotary": {**REDLLM, "heads": Heads(qk_norm=True, merged=True)},
    "n-grams": NGRAMS | ONE_LAYER,
    "n-grams of two embeddings": {
        "embeddings": replace(NGRAMS["embeddings"], shared=False), "decoder_start_token_id": 3, **ONE_LAYER,
    },
    "unbalanced": UNBALANCED | ONE_LAYER,
    "unbalanced t5gemma": T5GEMMA | UNBALANCED | {"heads": T5GEMMA["heads"]},
    "redllm": REDLLM,
    "t5gemma": T5GEMMA,
    "t5gemma2": T5GEMMA2,
}  # fmt: skip
PAIRS = [([5, 7, 9, 3, 8, 4, 6, 2, 11], [4, 6, 8, 1, 3, 2, 9]), ([12, 3, 4], [22, 21]), ([7, 1, 2, 28], [9])]


def model_of(name: str, **more: Any) -> EncoderDecoderModel:
    return EncoderDecoderModel(T5Config(**{**SIZES, **OPTIONS[name], **more}))


def parameters(model: Model) -> Any:
    """Parameters of which each matters: norms are not 1, and differences of positions are large."""
    keys = iter(jax.random.split(jax.random.key(3), 500))

    def changed(path: Any, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if "scale" in name or "ngram" in name:
            return leaf + 0.3 * jax.random.normal(next(keys), leaf.shape)
        return 3.0 * leaf if "rel_embedding" in name or "query" in name else leaf

    return jax.tree_util.tree_map_with_path(changed, model.init(jax.random.key(0)))


def padded(texts: Sequence[list[int]], shortest: int = 0) -> np.ndarray:
    length = max(shortest, *map(len, texts)) + 2
    return np.asarray([text + [0] * (length - len(text)) for text in texts], np.int32)


def batch(as_packed: bool = False) -> dict[str, np.ndarray]:
    """A pair in each row. as_packed: in rows as long as those of `packed`."""
    texts = list(zip(*PAIRS, strict=True))
    return seq2seq(*(padded(each, sum(map(len, each)) if as_packed else 0) for each in texts))


def packed() -> dict[str, np.ndarray]:
    """All pairs in the first row, and padding behind them; the other rows are empty."""
    found: dict[str, list[int]] = {}
    for number, (inputs, targets) in enumerate(PAIRS, start=1):
        parts = {"encoder_input_tokens": inputs, "encoder_segment_ids": [number] * len(inputs)}
        parts |= {"decoder_target_tokens": targets, "decoder_input_tokens": [0, *targets[:-1]]}
        for name, part in {**parts, "decoder_segment_ids": [number] * len(targets)}.items():
            found.setdefault(name, []).extend(part)
    return {name: padded([row, [], []]) for name, row in found.items()}


@functools.cache
def expected(name: str) -> tuple[Any, list[np.ndarray]]:
    """Parameters of an option's model, and the logits of all pairs."""
    model = model_of(name)
    params = parameters(model)
    return params, [plain_transformer.logits(params, model.config, *pair) for pair in PAIRS]


@pytest.mark.parametrize("name", OPTIONS)
def test_logits(name: str) -> None:
    """Of padded rows and of packed ones, which are as long: the options share most operations, compiled one by one."""
    params, theirs = expected(name)
    with jax.default_matmul_precision("highest"):
        batches = jax.tree.map(jnp.asarray, (batch(as_packed=True), packed()))
        rows, together = (model_of(name).logits(params, one) for one in batches)
    for row, logits in zip(rows, theirs, strict=True):
        assert relative_l2(row[: len(logits)], logits) < 1e-5
    assert relative_l2(together[0][:-2], np.concatenate(theirs)) < 1e-5


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
    assert plain - model_of("t5", heads=Heads(num_kv_heads=2)).flops_per_example(lengths) == 3 * 2 * 2 * 2 * head * (
        10 + 6 + 10
    )
    fewer = model_of("t5", heads=Heads(num_kv_heads=1)).flops_per_example(lengths)
    assert fewer - model_of("merged").flops_per_example(lengths) == 3 * 2 * 2 * 4 * head * 6


CANNOT_BE: list[tuple[Callable[[], dict[str, Any]], str]] = [
    (lambda: {"heads": Heads(num_kv_heads=3)}, "Heads.num_kv_heads is 3"),
    (lambda: {"heads": Heads(logit_softcap=0.0)}, "Heads.logit_softcap is 0.0"),
    (lambda: {"heads": Heads(merged=True), "attention_chunk_size": 4}, "attention_chunk_size is 4"),
    (lambda: {"layer_norms": "before"}, "Known: both, post, pre"),
    (lambda: {"positions": ROTARY, "head_dim": 5}, "T5Config.head_dim is 5"),
    (lambda: {"positions": Rotary(scale="8")}, "Rotary.scale is '8'"),  # type: ignore[arg-type]
    (lambda: {"windows": Windows(3)}, "Windows.encoder is 3"),  # type: ignore[arg-type]
    (lambda: {"windows": Windows(global_block=4)}, "Windows.encoder is None"),
    (lambda: {"windows": replace(GLOBAL["windows"], pattern=2)}, "Windows.pattern is 2"),
    (lambda: {**GLOBAL, "positions": ROTARY}, "T5Config.positions is Rotary("),
    (lambda: {**GLOBAL, "positions": Buckets(in_every_layer=True)}, "T5Config.positions is Buckets("),
    (lambda: {"encoder_sizes": EncoderSizes(num_heads=3), "heads": Heads(2)}, "EncoderSizes.num_kv_heads is None"),
    (lambda: {"encoder_sizes": EncoderSizes(emb_dim=16)}, "Embeddings.shared is True"),
    (lambda: {"encoder_sizes": EncoderSizes(mlp_dim=0)}, "EncoderSizes.mlp_dim is 0"),
    (lambda: {"decoder_start_token_id": 29}, "T5Config.decoder_start_token_id is 29"),
    (lambda: {"embeddings": Ngrams(lengths=(3, 0))}, "Ngrams.lengths is (3, 0)"),
]


def test_settings_that_no_model_can_have() -> None:
    for settings, named in CANNOT_BE:
        with refused(named):
            T5Config(**{**SIZES, **settings()})


def test_recorded_settings() -> None:
    """The parts' settings, under the names that runs have recorded since before there were parts."""
    found = model_of("t5gemma2").config.recorded()
    assert len(found) == 42
    named = {"rotary_base": 100.0, "rotary_scale": 8.0, "qk_norm": True, "decoder_window": 3, "share_embeddings": True}
    absent = {"relative_attention_bias": False, "relative_attention_num_buckets": 32, "ngram_lengths": None}
    assert {name: found[name] for name in named | absent} == named | absent


def test_a_stack_alone_has_nothing_of_the_other() -> None:
    two_stacks = {"heads": Heads(merged=True), "embeddings": Embeddings(shared=False)}
    for kind, settings, named in (
        (DecoderOnlyModel, two_stacks, ("Heads.merged", "Embeddings.shared")),
        (DecoderOnlyModel, {"windows": Windows((4, 4))}, ("Windows.encoder",)),
        (EncoderOnlyModel, {"windows": Windows(decoder=4)}, ("Windows.decoder",)),
    ):
        with refused(kind.__name__, *named):
            kind(T5Config(**SIZES, **settings)).abstract_params()
