"""`Model`, the interface of every architecture: pure functions of a parameter tree and a batch."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from t5xpg.base.errors import UserError
from t5xpg.models.attention.biases import Blocks
from t5xpg.models.attention.geometry import has_window
from t5xpg.models.config import T5Config
from t5xpg.models.layer_stack import LayerStack

# nested dicts with string keys and float32 arrays at the leaves, under T5X's names:
# params["encoder"]["layers_0"]["attention"]["query"]["kernel"]
Params = dict[str, Any]
Batch = Mapping[str, jax.Array]


class Outputs(NamedTuple):
    """The states of the last layer [B, T, D], and the function from any of them to logits [B, T, V] float32."""

    states: jax.Array
    to_logits: Callable[[jax.Array], jax.Array]


@functools.lru_cache(maxsize=16)
def _abstract_modules(kind: type[Model], config: T5Config) -> tuple[nnx.GraphDef, nnx.State]:
    modules = nnx.eval_shape(lambda: kind.modules(jax.random.key(0), config))
    stacked = config.scan_layers or config.remat_policy != "none"
    if stacked and not any(isinstance(module, LayerStack) for _, module in nnx.iter_modules(modules)):
        raise UserError(
            f"SCAN_LAYERS and REMAT_POLICY do nothing for a {kind.__name__}, whose layers are in no LayerStack "
            "(t5xpg.models.layer_stack): set SCAN_LAYERS=False and REMAT_POLICY='none'."
        )
    return nnx.split(modules)


@dataclass(frozen=True)
class Model(abc.ABC):
    """A model without state: every method is a pure function, to be jitted and differentiated by its caller."""

    config: T5Config

    # names of the feature converters whose batches the model takes; the first one is the default
    feature_converters: ClassVar[tuple[str, ...]]

    @staticmethod
    @abc.abstractmethod
    def modules(key: jax.Array, config: T5Config) -> nnx.Module:
        """New modules. Every parameter's key depends on its own name only."""

    @abc.abstractmethod
    def outputs(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Outputs:
        """The states and their output function, for every target position of the batch. Without a key: no dropout."""

    def logits(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
        """Logits [B, T, V] float32 of the `outputs`."""
        states, to_logits = self.outputs(params, batch, dropout_key=dropout_key)
        return to_logits(states)

    @abc.abstractmethod
    def flops_per_example(self, lengths: Mapping[str, int]) -> float:
        """Floating point operations of the matrix products, forward and backward, of one row of a batch.

        lengths: padded lengths of the task's features, as TASK_FEATURE_LENGTHS. A product [a, b] x [b, c] is 2abc; the
        backward pass is twice the forward pass. Attention is counted as it is computed, in full, causal or not. Norms,
        softmax and embedding look-ups are left out, as is usual for a share of the hardware's peak.
        """

    def for_decoding(self, feature_converter: str) -> Any | None:
        """The `Decodable` of a model trained on this converter's batches; None if the model cannot write text."""
        return None

    def with_start_ids(self, tokens: jax.Array) -> jax.Array:
        """Inputs of the decoder [B, T] int32, with every 0 (start of a text, or padding) replaced by the start id."""
        start = self.config.decoder_start_token_id
        return tokens if start == 0 else jnp.where(tokens == 0, start, tokens)

    def init(self, key: jax.Array) -> Params:
        """New parameters (T5X's initialisers), float32. Every parameter's key depends on its own name only."""
        return nnx.to_pure_dict(nnx.state(self.modules(key, self.config)))

    def abstract_params(self) -> Params:
        """The tree of `init` with jax.ShapeDtypeStruct at its leaves; allocates nothing."""
        return nnx.to_pure_dict(_abstract_modules(type(self), self.config)[1])

    def logical_axes(self) -> Params:
        """The tree of `init` with a tuple of T5X's names of axes at its leaves: "vocab", "embed", "heads" …"""
        axes = jax.tree.map(
            lambda variable: variable.replace(variable.get_metadata()["axes"]),
            _abstract_modules(type(self), self.config)[1],
            is_leaf=lambda node: isinstance(node, nnx.Variable),
        )
        return nnx.to_pure_dict(axes)

    def with_parameters(self, params: Params) -> Any:
        """The modules with these parameters."""
        return nnx.merge(_abstract_modules(type(self), self.config)[0], nnx.State(params))

    @property
    def num_params(self) -> int:
        """The number of parameters, each entry of an array counted."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.abstract_params()))


@dataclass(frozen=True)
class LayerFlops:
    """Operations of the forward pass of one layer's parts; see `Model.flops_per_example`."""

    config: T5Config

    @property
    def projection(self) -> int:
        """For one position, in the projection of the query or of the output."""
        return 2 * self.config.emb_dim * self.config.num_heads * self.config.head_dim

    @property
    def key_or_value(self) -> int:
        """For one position, in the projection of the key or of the value."""
        return self.projection * (self.config.heads.num_kv_heads or self.config.num_heads) // self.config.num_heads

    @property
    def pair(self) -> int:
        """For one query with one key: the logit, and the key's part in the mixed values."""
        return 2 * 2 * self.config.num_heads * self.config.head_dim

    def self_attention_and_mlp(self, length: int, layers: int, window: tuple[int, int] | None = None) -> int:
        """For the layers of an encoder, or of a decoder without cross attention. window: of the layers with one."""
        mlp = 2 * self.config.emb_dim * self.config.mlp_dim * (len(self.config.mlp_activations) + 1)
        projections = 2 * self.projection + 2 * self.key_or_value
        local = 0 if window is None else sum(has_window(self.config, index) for index in range(layers))
        pairs = (layers - local) * length * length
        if window is not None:
            pairs += local * Blocks.of_window(length, *window).pairs(length)
        return layers * length * (projections + mlp) + pairs * self.pair

    def global_tokens(self, length: int) -> int:
        """For one layer of an encoder: the sums, keys and values of global tokens, and their pairs with positions."""
        number = 0 if (size := self.config.windows.global_block) is None else length // size
        return number * (length * (2 * self.config.emb_dim + self.pair) + 2 * self.key_or_value)

    def cross_attention(self, queries: int, keys: int) -> int:
        query_and_output = 0 if self.config.heads.merged else 2 * queries * self.projection
        key_and_value = 2 * keys * self.key_or_value * self.config.encoder.emb_dim // self.config.emb_dim
        return query_and_output + key_and_value + queries * keys * self.pair

    def output(self, length: int) -> int:
        """For the output matrix, which belongs to no layer."""
        return length * 2 * self.config.emb_dim * self.config.vocab_size
