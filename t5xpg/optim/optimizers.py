"""Optimisers: frozen settings, each of which builds an optax transformation.

Where an array stacks all layers, the rules for an array hold for each layer. `transformation(params_axes)` takes the
logical axes of the parameters, a tree of tuples of names, because some rules depend on the meaning of a dimension.
`learning_rate` is a schedule; a number is a constant rate.

`relpos_bias_factor` multiplies the updates of the relative position biases. Adam moves an entry by about the
learning rate a step, whatever its size. These biases start near 0 and are added to attention logits unscaled. A head
looks at its neighbours only when they reach several units; at a rate that suits a matrix, this takes hundreds of steps.
`embedding_factor` does the same for the token embeddings, which T5 initialises with a standard deviation of 1, ten
times that of a matrix. Adafactor needs neither: its updates are relative to the size of the array.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from t5xpg.base.errors import UserError
from t5xpg.models.layer_stack import LAYERS
from t5xpg.optim.schedules import Schedule, as_schedule

Axes = tuple[str, ...]
AxesTree = Any  # nested dicts whose leaves are tuples of axis names
TABLE_AXES = ("vocab", "relpos_buckets", "length")  # axes of lookup tables, soft prompts and of the output head


def is_stacked(axes: Axes) -> bool:
    """True for the logical axes of an array that holds all layers of a stack."""
    return axes[:1] == (LAYERS,)


def layer_axes(axes: Axes) -> Axes:
    """The logical axes of one layer of a stacked array; those of any other array unchanged."""
    return axes[1:] if is_stacked(axes) else axes


def by_layer(inner: optax.GradientTransformation, params_axes: AxesTree) -> optax.GradientTransformation:
    """`inner`, which treats every array by itself, applied to every layer of a stacked array by itself.

    inner: its state consists of trees with the parameters' structure, and of counts, which are scalars. params_axes:
    the tree of logical axes. The state is that of inner, with stacked arrays for stacked parameters.
    """
    are_stacked = [is_stacked(axes) for axes in jax.tree.leaves(params_axes, is_leaf=_is_axes)]
    if not any(are_stacked):
        return inner

    def vmap_axes(leaf: Any) -> Any:
        """jax.vmap's axes for inner's state of one stacked array: the first axis of arrays, None for counts."""
        layer = jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
        return jax.tree.map(lambda part: 0 if part.ndim else None, jax.eval_shape(inner.init, layer))

    def init(params: Any) -> Any:
        leaves: list[Any] = jax.tree.leaves(params)
        treedef: Any = jax.tree.structure(params)
        states = [
            jax.vmap(inner.init, out_axes=vmap_axes(leaf))(leaf) if stacked else inner.init(leaf)
            for leaf, stacked in zip(leaves, are_stacked, strict=True)
        ]
        return _join_states(states, treedef)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        assert params is not None, "the sizes of parameters decide"
        leaves: list[Any] = jax.tree.leaves(params)
        treedef: Any = jax.tree.structure(params)
        states = _split_state(state, jax.tree.structure(jax.eval_shape(inner.init, leaves[0])), treedef)
        new_updates, new_states = [], []
        for gradient, leaf_state, leaf, stacked in zip(
            treedef.flatten_up_to(updates), states, leaves, are_stacked, strict=True
        ):
            update_leaf = inner.update
            if stacked:
                update_leaf = jax.vmap(update_leaf, in_axes=(0, vmap_axes(leaf), 0), out_axes=(0, vmap_axes(leaf)))
            new_update, leaf_state = update_leaf(gradient, leaf_state, leaf)
            new_updates.append(new_update)
            new_states.append(leaf_state)
        return treedef.unflatten(new_updates), _join_states(new_states, treedef)

    return optax.GradientTransformation(init, update)


def _join_states(states: list[Any], treedef: Any) -> Any:
    """One state from the states of all parameters: arrays become trees with the parameters' structure; of the counts,
    which are all equal, the first is kept."""
    structure: Any = jax.tree.structure(states[0])
    columns = zip(*(structure.flatten_up_to(state) for state in states), strict=True)
    return structure.unflatten([parts[0] if parts[0].ndim == 0 else treedef.unflatten(parts) for parts in columns])


def _split_state(state: Any, structure: Any, treedef: Any) -> list[Any]:
    """The inverse of `_join_states`: one state, of this structure, per parameter. treedef: of the parameters."""
    num_leaves = treedef.num_leaves
    columns = [
        [part] * num_leaves if isinstance(part, jax.Array) else treedef.flatten_up_to(part)
        for part in structure.flatten_up_to(state)
    ]
    return [structure.unflatten([column[index] for column in columns]) for index in range(num_leaves)]


@dataclass(frozen=True)
class Optimizer(abc.ABC):
    """The interface of an optimiser that `step.make_train_step` uses."""

    learning_rate: Schedule

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_schedule(self.learning_rate))
        for name in ("width_factor", "max_gradient_norm"):
            value = getattr(self, name, None)
            if value is not None and not value > 0:
                raise UserError(f"{type(self).__name__}.{name} is {value!r}; it has to be above 0.")

    @abc.abstractmethod
    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation: ...


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor as T5X ships it (arXiv 1804.04235; `t5x.adafactor.Adafactor`), for parameters of at most two axes.

    Arrays whose two largest dimensions have `min_dim_size_to_factor` or more entries keep a mean of squared gradients
    per row and per column, all others one per entry. T5X's rules by logical axis matter only for arrays of three and
    more axes: with two and fewer, relative position biases included, T5X also decides by these sizes.
    The decay subtracts `weight_decay * parameter`, not multiplied by the learning rate; but with an exponent other than
    0, multiplied by `learning_rate ** weight_decay_lr_exponent`, and a weight_decay of None or 0 then counts as 1.
    step_offset: the update from which the decay by `decay_rate` counts; it must have been reached (`Experiment`).
    """

    decay_rate: float = 0.8
    multiply_by_parameter_scale: bool = True
    clipping_threshold: float | None = 1.0
    epsilon1: float = 1e-30
    epsilon2: float = 1e-3
    min_dim_size_to_factor: int = 128
    factored: bool = True
    momentum: float | None = None
    step_offset: int = 0
    weight_decay: float | None = None
    weight_decay_lr_exponent: float | None = None
    max_gradient_norm: float | None = None

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        """Raises UserError for parameters of more than two axes."""
        unsupported = [axes for axes in jax.tree.leaves(params_axes, is_leaf=_is_axes) if len(layer_axes(axes)) > 2]
        if unsupported:
            raise UserError(
                f"Adafactor factors arrays of at most two axes, and the model has one of {unsupported[0]}: "
                "take another optimiser (gin/optimizers)."
            )
        steps = _clip(self.max_gradient_norm)
        factored = optax.scale_by_factored_rms(
            self.factored, self.decay_rate, self.step_offset, self.min_dim_size_to_factor, self.epsilon1
        )
        steps.append(by_layer(factored, params_axes))
        if self.clipping_threshold is not None:
            steps.append(by_layer(optax.clip_by_block_rms(self.clipping_threshold), params_axes))
        steps.append(optax.scale_by_learning_rate(self.learning_rate, flip_sign=False))
        if self.multiply_by_parameter_scale:
            steps.append(by_layer(optax.scale_by_param_block_rms(self.epsilon2), params_axes))
        if self.momentum is not None:
            steps.append(optax.ema(self.momentum, debias=False, accumulator_dtype=jnp.float32))
        if (decay := self._decay()) is not None:
            steps.append(optax.add_decayed_weights(decay))
        return optax.chain(*steps, optax.scale(-1.0))

    def _decay(self) -> Schedule | float | None:
        if not (exponent := self.weight_decay_lr_exponent):
            return self.weight_decay
        return lambda step: (self.weight_decay or 1.0) * self.learning_rate(step) ** exponent


@dataclass(frozen=True)
class AdamW(Optimizer):
    """AdamW (arXiv 1711.05101). Decays arrays of two and more axes, so not the scales of the norms.

    width_factor: m, the width of the model divided by that of the model whose learning rate is used. Updates of
    matrices that sum over hidden units, their decay included, are divided by m, as in muP for Adam (Yang et al.
    2021, arXiv 2203.03466, table 3; Everett et al. 2024, arXiv 2407.05872, for initial values like T5's).
    """

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_gradient_norm: float | None = None
    relpos_bias_factor: float = 1.0
    width_factor: float = 1.0

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        narrower = _scale(1.0 / self.width_factor, params_axes, lambda axes: is_hidden_matrix(axes) or _is_head(axes))
        return _adam(self, params_axes, after=narrower)


@dataclass(frozen=True)
class AdamWScale(Optimizer):
    """nanoT5's AdamW with Adafactor's parameter scaling: the update of an array is multiplied by its own size.

    The size is the root mean square of its entries, at least `minimum_scale`. The decay is AdamW's, not scaled.
    """

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    minimum_scale: float = 1e-3
    weight_decay: float = 0.0
    max_gradient_norm: float | None = 1.0
    relpos_bias_factor: float = 1.0

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        scaling = by_layer(optax.scale_by_param_block_rms(self.minimum_scale), params_axes)
        return _adam(self, params_axes, scaling=[scaling])


def _adam(
    optimizer: AdamW | AdamWScale,
    params_axes: AxesTree,
    scaling: Sequence[optax.GradientTransformation] = (),
    after: Sequence[optax.GradientTransformation] = (),
) -> optax.GradientTransformation:
    return optax.chain(
        *_clip(optimizer.max_gradient_norm),
        optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.epsilon),
        *scaling,
        optax.add_decayed_weights(
            optimizer.weight_decay, _map_axes(lambda axes: len(layer_axes(axes)) > 1, params_axes)
        ),
        optax.scale_by_learning_rate(optimizer.learning_rate),
        *_scale(optimizer.relpos_bias_factor, params_axes, _is_table_of_positions),
        *after,
    )


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan 2024) for the matrices inside the layers, AdamW without decay for everything else.

    Embeddings, the output head, relative position biases and norms get AdamW, at `adam_learning_rate` where it is
    given and at `learning_rate` otherwise; `weight_decay` is for the matrices only. `nesterov` holds for both (NAdamW),
    as in optax. Updates of matrices are orthogonalised momenta. The update of a matrix [I, O] is multiplied by
    sqrt(max(1, O / I)) or, where `consistent_rms` is set (0.2 is usual, arXiv 2502.16982), by
    consistent_rms * sqrt(max(I, O)), which makes rates comparable with AdamW's.

    width_factor: as in AdamW, but only for the output head; orthogonal updates need no such factor.
    """

    adam_learning_rate: Schedule | None = None
    momentum: float = 0.95
    nesterov: bool = True
    newton_schulz_steps: int = 5
    consistent_rms: float | None = None
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    max_gradient_norm: float | None = None
    relpos_bias_factor: float = 1.0
    embedding_factor: float = 1.0
    width_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adam_learning_rate is not None:
            object.__setattr__(self, "adam_learning_rate", as_schedule(self.adam_learning_rate))

    def transformation(self, params_axes: AxesTree) -> optax.GradientTransformation:
        muon = optax.contrib.muon(
            self.learning_rate,
            ns_steps=self.newton_schulz_steps,
            beta=self.momentum,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            adam_b1=self.b1,
            adam_b2=self.b2,
            adam_learning_rate=self.adam_learning_rate,
            muon_weight_dimension_numbers=_map_axes(_muon_dimensions, params_axes),
            consistent_rms=self.consistent_rms,
        )
        return optax.chain(
            *_clip(self.max_gradient_norm),
            muon,
            *_scale(self.relpos_bias_factor, params_axes, _is_table_of_positions),
            *_scale(self.embedding_factor, params_axes, lambda axes: "vocab" in axes and not _is_head(axes)),
            *_scale(1.0 / self.width_factor, params_axes, _is_head),
        )


def is_hidden_matrix(axes: Axes) -> bool:
    """True for the logical axes of a matrix from hidden units to hidden units: no embedding, head, bias or norm."""
    return len(layer_axes(axes)) == 2 and not any(name in TABLE_AXES for name in axes)


def _muon_dimensions(axes: Axes) -> MuonDimensionNumbers | None:
    """The two axes of the matrices that Muon orthogonalises; optax takes any other axis as a stack of matrices."""
    if not is_hidden_matrix(axes):
        return None
    return MuonDimensionNumbers(1, 2) if is_stacked(axes) else MuonDimensionNumbers(0, 1)


def _clip(max_gradient_norm: float | None) -> list[optax.GradientTransformation]:
    """Clipping by the global norm of the gradients, before everything else, as T5X does it."""
    return [] if max_gradient_norm is None else [optax.clip_by_global_norm(max_gradient_norm)]


def _is_head(axes: Axes) -> bool:
    """True for the axes of the output head, [embed, vocab], not for those of an embedding, tied or not."""
    return axes[-1:] == ("vocab",)


def _is_table_of_positions(axes: Axes) -> bool:
    return "relpos_buckets" in axes


def _scale(factor: float, params_axes: AxesTree, where: Callable[[Axes], bool]) -> list[optax.GradientTransformation]:
    """Multiply the updates of the arrays that `where` chooses by their axes; an empty list where the factor is 1."""
    return [] if factor == 1.0 else [optax.masked(optax.scale(factor), _map_axes(where, params_axes))]


def _map_axes(function: Callable[[Axes], Any], params_axes: AxesTree) -> Any:
    return jax.tree.map(function, params_axes, is_leaf=_is_axes)


def _is_axes(node: object) -> bool:
    return isinstance(node, tuple)
