"""Adapters: a few parameters that are trained beside those of a checkpoint, which stay as they are.

From the checkpoint's parameters and its own, an adapter computes parameters for the unchanged model. So no layer knows
of adapters, and the trained result is measured, used and exported as any other model.
"""

import abc
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax

from t5xpg.base.errors import UserError, nearest
from t5xpg.models.config import is_count
from t5xpg.models.layer_stack import LAYERS, layer_name
from t5xpg.models.layers import named_key
from t5xpg.models.model import Model, Params

A, B = "lora_a", "lora_b"
_SPECIAL_IDS = 3  # padding, end and unknown, with which T5's vocabularies begin


@dataclass(frozen=True)
class Adapter(abc.ABC):
    """The trained parameters beside a model's. Trees have the names of the parameters to which they belong."""

    @abc.abstractmethod
    def check(self, model: Model) -> None:
        """Raise UserError if the adapter does not fit the model."""

    def base_model(self, model: Model) -> Model:
        """The model to which the checkpoint belongs."""
        return model

    @abc.abstractmethod
    def abstract_params(self, model: Model) -> Params:
        """The tree of trained parameters, with jax.ShapeDtypeStruct at its leaves."""

    @abc.abstractmethod
    def logical_axes(self, model: Model) -> Params:
        """The same tree with tuples of axis names at its leaves, as `Model.logical_axes`."""

    @abc.abstractmethod
    def init(self, key: jax.Array, model: Model, base: Params) -> Params:
        """The trained parameters, float32, before the first update. Can be jitted."""

    @abc.abstractmethod
    def applied(self, base: Params, trained: Params) -> Params:
        """The parameters of the model, from both trees. Can be jitted and differentiated."""


@dataclass(frozen=True)
class Lora(Adapter):
    """LoRA (Hu et al. 2021, arXiv 2106.09685): a matrix W [I, O] becomes W + alpha / rank * A B, [I, r] by [r, O].

    kernels: regular expressions, each for the whole name of one or more matrices ("encoder/layers_0/attention/query/
    kernel"); embeddings and tables are matrices, too. A is drawn, with the variance 1 / (3 I) of the authors' code, and
    B is 0. The sum is computed in float32 before the model is applied; this costs I * r * O multiplications a matrix.
    So there is no dropout on A's inputs, and a 16-bit model rounds the sum, as it rounds fully trained weights.
    """

    kernels: tuple[str, ...] = (".*attention/(query|value)/kernel",)
    rank: int = 8
    alpha: float = 16.0

    def __post_init__(self) -> None:
        kernels = (self.kernels,) if isinstance(self.kernels, str) else tuple(self.kernels)
        object.__setattr__(self, "kernels", kernels)
        if not is_count(self.rank):
            raise UserError(f"LORA_RANK is {self.rank!r}: it must be a whole number of at least 1.")
        if not math.isfinite(self.alpha) or self.alpha == 0:
            raise UserError(f"LORA_ALPHA is {self.alpha!r}: it must be a finite number other than 0.")
        for kernel in kernels:
            try:
                re.compile(kernel)
            except re.error as error:
                raise UserError(f"LORA_KERNELS has {kernel!r}, which is no regular expression: {error}.") from error

    @property
    def scale(self) -> float:
        """The factor of A B."""
        return self.alpha / self.rank

    def check(self, model: Model) -> None:
        """Raise UserError if an expression matches no matrix (naming the nearest) or only part of a scanned stack."""
        names = [_names(path, leaf) for path, (leaf, _) in _matrices(model).items()]
        matrix_names = [name for layer_names in names for name in layer_names]
        for kernel in self.kernels or ("",):
            if not any(re.fullmatch(kernel, name) for name in matrix_names):
                raise UserError(f"LORA_KERNELS has {kernel!r}, which no matrix matches.{nearest(kernel, matrix_names)}")
        for layer_names in names:
            matches = [name for name in layer_names if self._matches(name)]
            if len(matches) not in (0, len(layer_names)):
                raise UserError(
                    f"LORA_KERNELS matches {matches[0]} and not all layers of its stack, which SCAN_LAYERS holds "
                    "together: match all of them, or set SCAN_LAYERS=False."
                )

    def abstract_params(self, model: Model) -> Params:
        def pair(_: Any, leaf: Any, axes: Any) -> tuple[Any, Any]:
            shapes = (*leaf.shape[:-1], self.rank), (*leaf.shape[:-2], self.rank, leaf.shape[-1])
            first, second = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
            return first, second

        return self._pairs(model, pair)

    def logical_axes(self, model: Model) -> Params:
        return self._pairs(model, lambda _, leaf, axes: ((*axes[:-1], "rank"), (*axes[:-2], "rank", axes[-1])))

    def init(self, key: jax.Array, model: Model, base: Params) -> Params:
        def pair(path: tuple[str, ...], leaf: Any, axes: Any) -> tuple[jax.Array, jax.Array]:
            inputs, outputs = leaf.shape[-2:]
            drawn = [jax.random.normal(named_key(key, name), (inputs, self.rank)) for name in _names(path, leaf)]
            first = jnp.stack(drawn) if len(leaf.shape) == 3 else drawn[0]
            return first / math.sqrt(3 * inputs), jnp.zeros((*leaf.shape[:-2], self.rank, outputs))

        return self._pairs(model, pair)

    def applied(self, base: Params, trained: Params) -> Params:
        def add(part: Any, factors: Params) -> Any:
            if A in factors:
                return part + self.scale * jnp.matmul(factors[A], factors[B], precision=lax.Precision.HIGHEST)
            return {name: add(inner, factors[name]) if name in factors else inner for name, inner in part.items()}

        return add(base, trained)

    def _matches(self, name: str) -> bool:
        return any(re.fullmatch(kernel, name) for kernel in self.kernels)

    def _pairs(self, model: Model, pair: Callable[[tuple[str, ...], Any, Any], tuple[Any, Any]]) -> Params:
        """A tree with A and B in place of each adapted matrix. pair: makes both from its path, shape and axes."""
        pairs = {}
        for path, (leaf, axes) in _matrices(model).items():
            if all(self._matches(name) for name in _names(path, leaf)):
                pairs[*path, A], pairs[*path, B] = pair(path, leaf, axes)
        return unflatten_dict(pairs)


@dataclass(frozen=True)
class PromptTuning(Adapter):
    """Prompt tuning (Lester et al. 2021, arXiv 2104.08691): `T5Config.prompt_tokens` embeddings before the inputs.

    init_ids: each begins as the embedding of a different id, drawn from the first `init_ids` after the special ones.
    These are SentencePiece's most frequent pieces, or with 256 all bytes.
    """

    init_ids: int = 256

    def check(self, model: Model) -> None:
        number = model.config.prompt_tokens
        if not number:
            raise UserError("PROMPT_TOKENS is 0: prompt tuning trains nothing but the prompt.")
        if not is_count(self.init_ids) or not number <= self.init_ids <= model.config.vocab_size - _SPECIAL_IDS:
            raise UserError(
                f"PROMPT_INIT_IDS is {self.init_ids!r}: expected a whole number from PROMPT_TOKENS ({number}) to the "
                f"ids of the vocabulary that are not special ({model.config.vocab_size - _SPECIAL_IDS})."
            )
        if "prompt" not in model.abstract_params():
            raise UserError(f"A {type(model).__name__} has no prompt: its modules do not read T5Config.prompt_tokens.")

    def base_model(self, model: Model) -> Model:
        return dataclasses.replace(model, config=dataclasses.replace(model.config, prompt_tokens=0))

    def abstract_params(self, model: Model) -> Params:
        return {"prompt": model.abstract_params()["prompt"]}

    def logical_axes(self, model: Model) -> Params:
        return {"prompt": model.logical_axes()["prompt"]}

    def init(self, key: jax.Array, model: Model, base: Params) -> Params:
        drawn = jax.random.choice(named_key(key, "prompt"), self.init_ids, (model.config.prompt_tokens,), replace=False)
        return {"prompt": {"embedding": jnp.take(base["token_embedder"]["embedding"], _SPECIAL_IDS + drawn, axis=0)}}

    def applied(self, base: Params, trained: Params) -> Params:
        return {**base, **trained}


def trained_params(model: Model, adapter: Adapter | None) -> Params:
    """The trained parameters, with jax.ShapeDtypeStruct at the leaves: without an adapter, all of the model's."""
    return model.abstract_params() if adapter is None else adapter.abstract_params(model)


def num_trained(model: Model, adapter: Adapter | None) -> int:
    """The number of trained parameters, each entry of an array counted."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(trained_params(model, adapter)))


def trained_axes(model: Model, adapter: Adapter | None) -> Params:
    """The logical axes of the trained parameters."""
    return model.logical_axes() if adapter is None else adapter.logical_axes(model)


def _matrices(model: Model) -> dict[tuple[str, ...], tuple[Any, Any]]:
    """By path: (abstract array, logical axes) of each parameter that has two axes, not counting that of a stack."""
    axes = flatten_dict(model.logical_axes())
    return {
        path: (leaf, axes[path])
        for path, leaf in flatten_dict(model.abstract_params()).items()
        if len(leaf.shape) - (LAYERS in path) == 2
    }


def _names(path: Sequence[str], leaf: Any) -> list[str]:
    """The name of a parameter; for a stacked one, the names that the single layers' parameters would have."""
    if LAYERS not in path:
        return ["/".join(path)]
    layers = range(leaf.shape[0])
    return ["/".join(layer_name(index) if name == LAYERS else name for name in path) for index in layers]
