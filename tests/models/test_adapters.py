"""Adapters: what they add to a model, what is trained of them, and what is refused."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from t5xpg.models.adapters import Adapter, Lora, PromptTuning
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.losses import LossConfig, loss_and_metrics
from t5xpg.models.model import Model
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from t5xpg.optim import state
from t5xpg.optim.step import make_train_step
from tests.models import plain_transformer
from tests.models.test_beyond_t5 import parameters
from tests.optim.test_step import Plain
from tests.refusals import refused
from tests.small_models import ONE_LAYER, SIZES, relative_l2, seq2seq

P, V = 3, SIZES["vocab_size"]
MODEL = EncoderDecoderModel(T5Config(**SIZES))
LORA = Lora((".*attention/(query|value)/kernel", "token_embedder/embedding", "decoder/.*/wo/kernel"), 2, 3.0)
INPUTS, TARGETS = [5, 9, 2, 27, 11, 1], [8, 3, 3, 21, 1]
BATCH = seq2seq(np.int32([INPUTS]), np.int32([TARGETS]))
TOKEN_BYTES = np.ones(V, np.int32)


def prompted(model: Model) -> Model:
    return dataclasses.replace(model, config=dataclasses.replace(model.config, prompt_tokens=P))


base = functools.cache(lambda: parameters(MODEL))


def trained(adapter: Adapter, model: Model) -> Any:
    """Parameters of an adapter, all of which matter."""
    draw = np.random.default_rng(3)
    abstract = adapter.abstract_params(model)
    return jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape) / 2, jnp.float32), abstract)


def test_lora_computes_what_the_matrices_and_its_products_do() -> None:
    own, params = trained(LORA, MODEL), base()
    products = {path[:-1] for path in flatten_dict(own)}
    assert len(products) == 2 * (2 + 2 + 2) + 1 + 2
    expected = {path: np.asarray(array, np.float64) for path, array in flatten_dict(params).items()}
    for path in products:
        a, b = (np.asarray(flatten_dict(own)[*path, name], np.float64) for name in ("lora_a", "lora_b"))
        expected[path] = expected[path] + 1.5 * a @ b
    whole = LORA.applied(params, own)
    for path, array in flatten_dict(whole).items():
        np.testing.assert_allclose(array, expected[path], rtol=1e-6, atol=1e-6)
        assert path in products or array is flatten_dict(params)[path]
    tree: Any = {}
    for path, array in expected.items():
        functools.reduce(lambda node, name: node.setdefault(name, {}), path[:-1], tree)[path[-1]] = array
    reference = plain_transformer.logits(tree, MODEL.config, INPUTS, TARGETS)
    logits = jax.jit(MODEL.logits)
    assert relative_l2(logits(LORA.applied(params, own), BATCH)[0], reference) < 1e-5
    assert relative_l2(logits(params, BATCH)[0], reference) > 0.1


@pytest.mark.parametrize("kind", [EncoderDecoderModel, EncoderOnlyModel])
def test_lora_begins_as_the_model_with_its_layers_apart_or_together(kind: type[Model]) -> None:
    model, lora, key = kind(T5Config(**SIZES)), Lora(rank=4), jax.random.key(1)
    stacked = kind(T5Config(**SIZES, scan_layers=True))
    params, stacked_params = model.init(jax.random.key(0)), stacked.init(jax.random.key(0))
    own, stacked_own = lora.init(key, model, params), lora.init(key, stacked, stacked_params)
    assert all(map(np.array_equal, *map(jax.tree.leaves, (lora.applied(params, own), params))))
    stack = "encoder" if kind is EncoderOnlyModel else "decoder"
    name = "attention" if kind is EncoderOnlyModel else "self_attention"
    for index in range(2):
        apart = own[stack][f"layers_{index}"][name]["query"]["kernel"]
        together = stacked_own[stack]["layers"][name]["query"]["kernel"]
        for part in ("lora_a", "lora_b"):
            np.testing.assert_array_equal(apart[part], together[part][index])
    for adapted, added in ((model, own), (stacked, stacked_own)):
        shapes, axes = lora.abstract_params(adapted), lora.logical_axes(adapted)
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), added
        )
        lengths = jax.tree.map(len, axes, is_leaf=lambda node: isinstance(node, tuple))
        assert lengths == jax.tree.map(lambda leaf: leaf.ndim, added)
    doubled = jax.tree.map(lambda leaf: leaf + 0.5, stacked_own)
    layers = jax.tree.map(lambda leaf: leaf + 0.5, own)
    whole, stacked_whole = lora.applied(params, layers), lora.applied(stacked_params, doubled)
    one = whole[stack]["layers_1"][name]["value"]["kernel"]
    np.testing.assert_allclose(stacked_whole[stack]["layers"][name]["value"]["kernel"][1], one, rtol=1e-6)


def test_an_update_changes_the_products_alone() -> None:
    """Their gradients are those of the matrices, by the chain rule."""
    model = EncoderDecoderModel(T5Config(**{**SIZES, **ONE_LAYER}))
    base, params = model.init(jax.random.key(0)), trained(LORA, model)
    before = state.of_parameters(model, Plain(), params, adapter=LORA, frozen=base)
    step = make_train_step(model, Plain(), LossConfig(), adapter=LORA, seed=0, token_bytes=TOKEN_BYTES)
    after, metrics = jax.jit(step)(before, BATCH)
    assert all(map(np.array_equal, *map(jax.tree.leaves, (after.frozen, before.frozen))))

    def loss(params: Any) -> Any:
        return loss_and_metrics(model.logits(params, BATCH), BATCH, LossConfig(), TOKEN_BYTES)[0]

    assert before.frozen is not None
    gradients = flatten_dict(jax.jit(jax.grad(loss))(LORA.applied(before.frozen, before.params)))
    old, new = flatten_dict(before.params), flatten_dict(after.params)
    assert metrics["gradient_squares"].shape == (len(old),)
    for *path, part in old:
        a, b, gradient = old[*path, "lora_a"], old[*path, "lora_b"], gradients[tuple(path)]
        of_part = gradient @ b.T if part == "lora_a" else a.T @ gradient
        expected = old[*path, part] - 0.1 * 1.5 * of_part
        np.testing.assert_allclose(new[*path, part], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [EncoderDecoderModel, SharedEncoderDecoderModel, DecoderOnlyModel, EncoderOnlyModel])
def test_a_prompt_is_read_as_further_tokens_would_be(kind: type[Model]) -> None:
    """Of a vocabulary with so many more ids, before the text; and of a prefix, where there is one."""
    model = kind(T5Config(**{**SIZES, **ONE_LAYER}))
    params = model.init(jax.random.key(0))
    adapter, with_prompt = PromptTuning(20), prompted(model)
    own = trained(adapter, with_prompt)
    assert jax.tree.map(jnp.shape, own) == {"prompt": {"embedding": (P, SIZES["emb_dim"])}}
    assert adapter.base_model(with_prompt) == model
    rows = np.array([[4, 17, 9, 1, 0], [3, 28, 1, 0, 0]], np.int32)
    batch = seq2seq(rows, rows[:, ::-1].copy())
    table = np.concatenate([params["token_embedder"]["embedding"], own["prompt"]["embedding"]])
    longer = {**params, "token_embedder": {"embedding": jnp.asarray(table)}}
    ids = np.broadcast_to(np.arange(V, V + P, dtype=np.int32), (2, P))
    arrays = ["encoder_input_tokens"]
    if kind is DecoderOnlyModel:
        batch = {**seq2seq(rows, rows), "decoder_causal_attention": np.int32([[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])}
        arrays = ["decoder_input_tokens", "decoder_target_tokens", "decoder_causal_attention"]
    behind = batch | {name: np.concatenate([ids, batch[name]], axis=1) for name in arrays}
    larger = kind(T5Config(**{**SIZES, **ONE_LAYER, "vocab_size": V + P}))
    # not compiled: the models share operations
    expected = larger.logits(longer, jax.tree.map(jnp.asarray, behind))
    expected = expected[:, P:] if kind in (DecoderOnlyModel, EncoderOnlyModel) else expected
    batch = jax.tree.map(jnp.asarray, batch)
    found = with_prompt.logits(adapter.applied(params, own), batch)
    assert found.shape == (*rows.shape, V)
    assert relative_l2(found, expected[..., :V]) < 1e-6
    assert relative_l2(model.logits(params, batch), found) > 0.01


def test_what_is_said_of_a_prompted_encoder_is_of_its_text() -> None:
    model = prompted(MODEL)
    params = PromptTuning(20).applied(base(), trained(PromptTuning(20), model))
    encoded = jax.jit(model.encode)(params, BATCH["encoder_input_tokens"])
    assert encoded.shape == (1, len(INPUTS), SIZES["emb_dim"])
    weights = jax.jit(model.source_attention)(params, BATCH)
    assert weights.shape == (1, 2, SIZES["num_heads"], len(TARGETS), len(INPUTS))
    assert 0.1 < float(weights.sum(axis=-1).max()) < 1.0, "the prompt has the rest"


def test_a_prompt_begins_as_embeddings_of_the_vocabulary() -> None:
    adapter, model = PromptTuning(20), prompted(MODEL)
    table = np.asarray(base()["token_embedder"]["embedding"])
    drawn = [np.asarray(adapter.init(jax.random.key(n), model, base())["prompt"]["embedding"]) for n in (0, 0, 1)]
    ids = [[int(np.flatnonzero((table == row).all(axis=1))[0]) for row in one] for one in drawn]
    assert ids[0] == ids[1] != ids[2]
    assert all(len(set(one)) == P and min(one) >= 3 and max(one) < 23 for one in ids)


def test_kernels_that_cannot_be() -> None:
    scanned = EncoderDecoderModel(T5Config(**SIZES, scan_layers=True))
    for model, options, *named in (
        (MODEL, {"kernels": "encoder/layers_0/attention/quary/kernel"}, "quary", "Did you mean encoder"),
        (MODEL, {"kernels": ".*layer_norm/scale"}, "LORA_KERNELS has '.*layer_norm/scale'"),
        (MODEL, {"kernels": ()}, "LORA_KERNELS has ''"),
        (MODEL, {"kernels": "("}, "LORA_KERNELS has '('", "regular expression"),
        (MODEL, {"rank": 0}, "LORA_RANK is 0", "at least 1"),
        (MODEL, {"alpha": 0.0}, "LORA_ALPHA is 0.0"),
        (scanned, {"kernels": "encoder/layers_1/mlp/wo/kernel"}, "LORA_KERNELS", "not all layers"),
    ):
        with refused(*named):
            Lora(**options).check(model)  # type: ignore[arg-type]


class Other(EncoderDecoderModel):
    """An architecture of somebody's own, without a prompt."""

    def abstract_params(self) -> Any:
        return {name: part for name, part in super().abstract_params().items() if name != "prompt"}


def test_prompts_that_cannot_be() -> None:
    for model, init_ids, *named in (
        (MODEL, 20, "PROMPT_TOKENS is 0"),
        (prompted(MODEL), 2, "PROMPT_INIT_IDS is 2", "(3)"),
        (prompted(MODEL), 27, "PROMPT_INIT_IDS is 27", "(26)"),
        (Other(prompted(MODEL).config), 20, "Other", "T5Config.prompt_tokens"),
    ):
        with refused(*named):
            PromptTuning(init_ids).check(model)
