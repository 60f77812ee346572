"""Attention with a window by blocks, against masks and the program in NumPy, and what it holds; global tokens."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5xpg.models.attention import Projections, attend
from t5xpg.models.attention.biases import AttentionPattern, BlockedBias, Blocks, LocalOrGlobalBias
from t5xpg.models.attention.global_tokens import global_tokens
from t5xpg.models.attention.relative_positions import RelativePositionBias
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.layers import OFF, Dropout
from t5xpg.models.parts import Windows
from tests.models import plain_transformer
from tests.models.test_beyond_t5 import SIZES, model_of, padded, parameters
from tests.small_models import largest_array, relative_l2, seq2seq, with_layers_of

S, H, K = 200, 2, 4  # three blocks of 64, and a part of one
WINDOW = (7, 5)
RNG = np.random.default_rng(0)
ROWS = {name: RNG.normal(size=(2, S, H, K)).astype(np.float32) for name in ("queries", "keys", "values", "of")}
TOKENS = np.where(np.arange(S)[None, :] < np.asarray([[S], [141]]), 1, 0).astype(np.int32)
SEGMENTS = np.where(TOKENS > 0, 1 + np.searchsorted([9, 70, 133], np.arange(S), side="right"), 0).astype(np.int32)
CONFIG = T5Config(vocab_size=9, num_heads=H, head_dim=K)


def a_pair(*, packed: bool, is_causal: bool, prefix: bool = False) -> tuple[Any, AttentionPattern]:
    """The numbers of a table of positions, and who sees whom; the table is put in later."""
    table = RelativePositionBias(jax.random.key(1), CONFIG)
    segments = SEGMENTS if packed else None
    seen = (np.arange(S) % 67 < 20).astype(np.int32) * TOKENS if prefix else None
    numbers = nnx.to_pure_dict(nnx.state(table))
    return (nnx.graphdef(table), numbers), AttentionPattern(
        S, TOKENS, segments, segments, is_causal=is_causal, prefix=seen, window=WINDOW
    )


def mixed_and_gradients(
    table: Any,
    pairs: AttentionPattern,
    by_blocks: bool,
    dropout: Dropout = OFF,
    softcap: float | None = None,
    dtype: Any = None,
) -> Any:
    graph, numbers = table

    def of(rows: dict[str, jax.Array], numbers: Any) -> tuple[jax.Array, jax.Array]:
        positions = nnx.merge(graph, nnx.State(numbers)).table(bidirectional=not pairs.is_causal)
        bias = AttentionPattern(**{**vars(pairs), "positions": positions}).make_bias(None, by_blocks)
        assert isinstance(bias, BlockedBias) == by_blocks
        projections = Projections(**{name: array.astype(dtype or jnp.float32) for name, array in rows.items()})
        mixed = attend(projections, bias, dropout, softcap).astype(jnp.float32)
        mixed = jnp.where((TOKENS > 0)[:, :, None, None], mixed, 0.0)
        return jnp.sum(mixed * ROWS["of"]), mixed

    rows = {name: jnp.asarray(ROWS[name]) for name in ("queries", "keys", "values")}
    with jax.default_matmul_precision("highest"):
        (_, mixed), gradients = jax.jit(jax.value_and_grad(of, argnums=(0, 1), has_aux=True))(rows, numbers)
    return mixed, gradients


@pytest.mark.parametrize(
    ("kind", "more", "tolerance"),
    [
        ({"packed": False, "is_causal": False}, {}, 1e-5),
        ({"packed": True, "is_causal": False}, {"softcap": 0.7}, 1e-5),
        ({"packed": True, "is_causal": True}, {"dropout": Dropout(0.3, jax.random.key(4))}, 1e-5),
        ({"packed": True, "is_causal": True, "prefix": True}, {}, 1e-5),
        ({"packed": True, "is_causal": False}, {"dtype": jnp.bfloat16}, 0.02),
    ],
)
def test_blocks_compute_what_masks_compute(kind: Any, more: Any, tolerance: float) -> None:
    """Of rows that no number of blocks fills, with biases and keys of positions."""
    table, pairs = a_pair(**kind)
    got, expected = (mixed_and_gradients(table, pairs, by_blocks, **more) for by_blocks in (True, False))
    jax.tree.map(lambda a, b: np.testing.assert_array_less(relative_l2(a, b), tolerance), got, expected)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_scanned_layer_is_of_one_of_two_kinds(is_local: bool) -> None:
    pairs = AttentionPattern(S, TOKENS, None, None, window=WINDOW)
    local, whole = pairs.make_bias(None), AttentionPattern(S, TOKENS, None, None).make_bias(None)
    rows = [jnp.asarray(ROWS[name]) for name in ("queries", "keys", "values")]

    def of(values: jax.Array, bias: Any) -> jax.Array:
        return attend(Projections(rows[0], rows[1], values), bias, OFF)

    both = LocalOrGlobalBias(jnp.asarray(is_local), local, whole)
    got, back = jax.vjp(lambda values: of(values, both), rows[2])
    expected, theirs = jax.vjp(lambda values: of(values, local if is_local else whole), rows[2])
    assert relative_l2(got, expected) < 1e-6
    assert relative_l2(back(ROWS["of"])[0], theirs(ROWS["of"])[0]) < 1e-6


LONG = [[int(token) for token in RNG.integers(3, 29, length)] for length in (150, 83, 31)]
GLOBAL = {"windows": Windows((3, 2), pattern=4, global_block=5)}


@pytest.mark.parametrize(
    ("name", "more"), [("t5gemma", {}), ("t5gemma", {"scan_layers": True}), ("windows", {}), ("t5", GLOBAL)]
)
def test_long_rows_of_models(name: str, more: dict[str, Any]) -> None:
    """Encoders and decoders by blocks, with rotary positions, grouped queries and soft caps, and with global tokens."""
    apart, model = (model_of(name, **{**more, **way}) for way in ({"scan_layers": False}, {}))
    params = parameters(apart)
    expected = [plain_transformer.logits(params, apart.config, text, text) for text in LONG]
    params = with_layers_of(params, model.abstract_params())
    together = np.asarray([[token for text in LONG for token in text]], np.int32)
    segments = np.repeat([1, 2, 3], [len(text) for text in LONG])[None]
    packed = seq2seq(together, together) | {f"{stack}_segment_ids": segments for stack in ("encoder", "decoder")}
    begins = np.cumsum([0, *map(len, LONG[:-1])])
    packed["decoder_input_tokens"][0, begins] = 0
    with jax.default_matmul_precision("highest"):
        rows, row = (jax.jit(model.logits)(params, one) for one in (seq2seq(padded(LONG), padded(LONG)), packed))
    for index, logits in enumerate(expected):
        assert relative_l2(rows[index, : len(logits)], logits) < 1e-5
        assert relative_l2(row[0, begins[index] :][: len(logits)], logits) < 1e-5


def test_rows_shorter_than_a_block_have_no_global_tokens() -> None:
    model = model_of("t5", **GLOBAL)
    params = parameters(model)
    short = LONG[0][:2]
    with jax.default_matmul_precision("highest"):
        row = jax.jit(model.logits)(params, seq2seq(padded([short]), padded([short])))
    expected = plain_transformer.logits(params, model.config, short, short)
    assert relative_l2(row[0, : len(short)], expected) < 1e-5


def test_global_tokens_of_packed_rows() -> None:
    """Texts of 7, 2 and 4 tokens in blocks of 3, by hand: the second has none, and the last of a text is of no block's
    own."""
    segments = np.repeat([1, 2, 3, 0], [7, 2, 4, 2])[None]
    found = global_tokens(jnp.asarray(segments > 0, jnp.int32), jnp.asarray(segments), 3, None)
    np.testing.assert_array_equal(found.numbers[0], [0, 0, 0, 1, 1, 1, 1, -1, -1, 2, 2, 2, 2, -1, -1])
    seen = np.asarray(found.bias[0, 0] == 0)
    np.testing.assert_array_equal(seen[[0, 6]], [[True, True, False, False, False]] * 2)
    np.testing.assert_array_equal(seen[[7, 12]], [[False] * 5, [False, False, True, False, False]])
    x = np.arange(15, dtype=np.float32)[None, :, None]
    np.testing.assert_array_equal(found.block_sums(jnp.asarray(x))[0, :, 0], [3, 18, 42, 0, 0])


def test_no_array_holds_all_pairs() -> None:
    """Forward and backward, of an encoder and of a decoder, packed: what is largest grows with the length."""

    def largest(model: Any, lengths: dict[str, int]) -> int:
        names = ("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens")
        names += ("encoder_segment_ids", "decoder_segment_ids")
        batch = {name: jax.ShapeDtypeStruct((1, lengths[name[:7]]), np.int32) for name in names}
        return largest_array(model, batch)

    decoder, both = Windows(decoder=9, pattern=9), Windows((9, 9), 9, pattern=9)
    for kind, of, windows in ((EncoderDecoderModel, "encoder", both), (DecoderOnlyModel, "decoder", decoder)):
        model = kind(T5Config(**SIZES, windows=windows))
        one, two = (largest(model, {"encoder": 16, "decoder": 16, of: length}) for length in (1024, 2048))
        assert one < 1024**2
        assert two <= 2 * one
        masks = kind(T5Config(**SIZES, windows=replace(windows, pattern=1)))
        assert largest(masks, {"encoder": 16, "decoder": 16, of: 1024}) >= 1024**2


def test_short_rows_are_not_by_blocks() -> None:
    """Where a block's keys are all of the row's, or more."""
    assert Blocks.of_window(200, 7, 5) == Blocks(4, 64, 7, 5)
    assert Blocks.of_window(300, 127, 127) == Blocks(3, 128, 127, 127)
    assert Blocks.of_window(64, 7, 5) == Blocks(1, 64, 0, 0)
    for length, by_blocks in ((76, False), (77, True)):
        bias = AttentionPattern(length, jnp.ones((1, length), jnp.int32), None, None, window=WINDOW).make_bias(None)
        assert isinstance(bias, BlockedBias) == by_blocks


def test_operations() -> None:
    """Of a window, those of a block's queries with its keys; of global tokens, their sums, keys, values and pairs."""
    lengths, windows = {"inputs": 256, "targets": 6}, Windows((3, 2), pattern=4)
    pair, D = 2 * 2 * 4 * 6, 12
    plain = model_of("t5").flops_per_example(lengths)
    local = model_of("t5", windows=windows).flops_per_example(lengths)
    assert plain - local == 3 * 2 * pair * 256 * (256 - (64 + 3 + 2))
    more = model_of("t5", windows=replace(windows, global_block=16)).flops_per_example(lengths) - local
    assert more == 3 * 2 * (16 * 256 * (pair + 2 * D) + 16 * 2 * 2 * D * 4 * 6)


def test_positions_of_a_prefix_see_each_other_wherever_they_are() -> None:
    """T5X's rule (make_decoder_mask): causal, or both of the prefix; and of one segment."""
    prefix = (RNG.random((2, S)) < 0.3).astype(np.int32) * TOKENS
    pairs = AttentionPattern(S, TOKENS, SEGMENTS, SEGMENTS, is_causal=True, prefix=prefix)
    of_prefix = (prefix[:, :, None] * prefix[:, None, :]) > 0
    same = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
    expected = (np.tri(S, dtype=bool) | of_prefix) & same & (TOKENS[:, None, :] > 0)
    np.testing.assert_array_equal(np.asarray(pairs.visible)[:, 0], expected)
    chunks = pairs.make_bias(48)
    for number in range(5):
        mask = chunks.chunk_bias(jnp.int32(number), chunks.segments[number]).mask[:, 0]
        rows = expected[:, 48 * number : 48 * (number + 1)]
        np.testing.assert_array_equal(np.asarray(mask)[:, : rows.shape[1]] == 0.0, rows)
