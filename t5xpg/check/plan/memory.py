"""The memory of a training step on each device, from shapes alone: nothing is compiled or allocated.

State, gradients and batch are exact. Activations are the sum of several parts: what automatic differentiation keeps
from the forward pass, which JAX derives from shapes in a fraction of a second; with a remat policy, what is made again
for one layer at a time; the chunks of attention and of the loss, where these work in chunks; where weights are stored
in parts, the gathered tables and the largest other gathered weight, with their gradients; and a teacher's
probabilities. The compiler keeps less of some and needs room for others. Compilers for GPUs and TPUs do not keep what
cheap operations make from kept arrays: they make it again in the loop that reads it.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Var
from jax.sharding import Mesh

from t5xpg.distributed import MODEL, batch_parts, batch_parts_of
from t5xpg.experiment.assembly import abstract_batch
from t5xpg.experiment.experiment import Experiment
from t5xpg.models import chunked_loss
from t5xpg.models.adapters import trained_params
from t5xpg.models.attention.biases import Blocks
from t5xpg.models.config import T5Config
from t5xpg.models.layer_stack import LAYERS
from t5xpg.models.losses import loss_and_metrics, side_of_targets
from t5xpg.optim.state import TrainState

# The memory of XLA's compiled steps lies between these multiples of `Memory.total` (tests/check/plan/test_memory.py).
BAND = (0.8, 1.5)
FITS, DOES_NOT_FIT = "fits", "does not fit"
# Operations that fusing compilers do again instead of keeping their results.
_CHEAP = frozenset(
    (
        "add", "add_any", "broadcast_in_dim", "convert_element_type", "copy", "div", "max", "min", "mul", "name", "neg",
        "reshape", "select_n", "squeeze", "sub", "transpose",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Bytes on each device.

    state: parameters (their average and frozen ones included) and the optimiser's arrays. gradients: counted twice
    where they are added up over microbatches. activations: what the forward pass of one microbatch keeps for the
    backward pass, and temporary arrays beside it. batch: the device's rows.
    """

    state: int
    gradients: int
    activations: int
    batch: int

    @property
    def total(self) -> int:
        return self.state + self.gradients + self.activations + self.batch


def fits(total: float, usable: float) -> str:
    """Returns "fits", "may not fit" (the estimate is too large) or "does not fit" (the lower end of its band is too).

    total: `Memory.total`. usable: the device's memory for it. Both are bytes.
    """
    if total * BAND[0] > usable:
        return DOES_NOT_FIT
    return FITS if total <= usable else "may not fit"


def state_and_gradients(experiment: Experiment, state: TrainState, shardings: TrainState) -> Memory:
    """The memory of the state and the gradients alone, which takes no tracing. shardings: those of the state."""
    gradients = bytes_on_device(state.params, shardings.params)
    return Memory(
        state=bytes_on_device(state, shardings),
        gradients=gradients if experiment.num_microbatches == 1 else 2 * gradients,
        activations=0,
        batch=0,
    )


def estimate(
    experiment: Experiment, state: TrainState, shardings: TrainState, mesh: Mesh, *, fuses: bool = False
) -> Memory:
    """The memory of a training step on each device of a mesh; with length buckets, for the bucket that needs most.

    fuses: whether the devices are GPUs or TPUs, whose compilers make cheap results again.
    """
    buckets = experiment.train_dataset.buckets.values()
    if len(buckets) > 1:
        each = [dataclasses.replace(experiment, train_dataset=bucket) for bucket in buckets]
        return max((estimate(one, state, shardings, mesh, fuses=fuses) for one in each), key=lambda part: part.total)
    part = state_and_gradients(experiment, state, shardings)
    data, model = batch_parts(mesh), mesh.shape[MODEL]
    rows = max(1, experiment.train_dataset.batch_size // (data * experiment.num_microbatches))
    batch = abstract_batch(experiment.train_dataset)
    activations = _activation_bytes(experiment, rows, mesh, fuses) + _gathered_bytes(experiment, state, shardings)
    if experiment.teacher is not None:  # its probabilities of all targets
        targets = abstract_batch(experiment.train_dataset, rows)[f"{side_of_targets(batch)}target_tokens"]
        activations += 4 * math.prod(targets.shape) * math.ceil(experiment.model.config.vocab_size / model)
    return dataclasses.replace(part, activations=activations, batch=_num_bytes(batch) // data)


def _gathered_bytes(experiment: Experiment, state: TrainState, shardings: TrainState) -> int:
    """The bytes of weights gathered where they are used, with their gradients: all tables and the largest other."""
    axes = jax.tree.leaves(experiment.base_model.logical_axes(), is_leaf=lambda node: isinstance(node, tuple))
    arrays, layout = (one.params if experiment.adapter is None else one.frozen for one in (state, shardings))
    leaves = zip(jax.tree.leaves(arrays), jax.tree.leaves(layout), axes, strict=True)
    tables = largest = 0
    for leaf, sharding, names in leaves:
        if (count := batch_parts_of(sharding)) == 1:
            continue
        size = bytes_on_device(leaf, sharding) * count // (leaf.shape[0] if names[0] == LAYERS else 1)
        if "vocab" in names:
            tables += size
        else:
            largest = max(largest, size)
    return 2 * (tables + largest)


def _activation_bytes(experiment: Experiment, rows: int, mesh: Mesh, fuses: bool) -> int:
    """The bytes that the forward pass of a device's `rows` rows keeps, for a model that is split over a mesh."""
    config = experiment.model.config
    recomputed = 0
    if config.remat_policy != "none":
        layer = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
        layers = max(config.num_encoder_layers, config.num_decoder_layers)
        if config.windows.pattern <= layers and config.windows.global_block is None:
            # of two kinds, the layer that sees everything
            layer = dataclasses.replace(layer, windows=dataclasses.replace(config.windows, pattern=1))
        recomputed = _kept_bytes(experiment, dataclasses.replace(layer, remat_policy="none"), rows, mesh, fuses)
        recomputed -= _kept_bytes(experiment, layer, rows, mesh, fuses)
    return _kept_bytes(experiment, config, rows, mesh, fuses) + max(recomputed, 0)


def _kept_bytes(experiment: Experiment, config: T5Config, rows: int, mesh: Mesh, fuses: bool) -> int:
    """The bytes that the forward pass keeps under the config's remat policy."""
    model = dataclasses.replace(experiment.model, config=_config_of_device(config, mesh.shape[MODEL]))
    by_chunks = mesh.size == 1 and experiment.teacher is None
    adapter = experiment.adapter
    frozen = None if adapter is None else adapter.base_model(model).abstract_params()
    params = trained_params(model, adapter)
    token_bytes = jax.ShapeDtypeStruct((model.config.vocab_size,), np.int32)

    def residuals(params: Any, frozen: Any, batch: Any, token_bytes: Any, key: Any) -> Any:
        dropout_key = key if config.dropout_rate > 0 else None

        def loss(params: Any) -> Any:
            whole = params if adapter is None else adapter.applied(frozen, params)
            states, to_logits = model.outputs(whole, batch, dropout_key=dropout_key)
            if by_chunks:
                return chunked_loss.loss_and_metrics(states, to_logits, batch, experiment.loss, token_bytes)
            return loss_and_metrics(to_logits(states), batch, experiment.loss, token_bytes)

        return jax.vjp(loss, params, has_aux=True)[1]  # a pytree of what it needs

    batch = abstract_batch(experiment.train_dataset, rows)
    program = jax.make_jaxpr(residuals)(params, frozen, batch, token_bytes, jax.random.key(0)).jaxpr
    if fuses:
        size = _total_bytes(_fewest_kept(program))
    else:
        leaves: list[Any] = [array.aval for array in program.outvars]
        # Parameters are kept too, but are already counted as state.
        param_counts = Counter((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves((params, frozen)))
        shared = param_counts & Counter((leaf.shape, leaf.dtype) for leaf in leaves)
        size = _num_bytes(leaves) - sum(n * math.prod(shape) * dtype.itemsize for (shape, dtype), n in shared.items())
    recomputed = _recomputed_bytes(model.config, batch, rows)
    if by_chunks:
        (B, T), config = batch[f"{side_of_targets(batch)}target_tokens"].shape, model.config
        length = chunked_loss.chunk_length(B, T, config.vocab_size, config.emb_dim) or 0
        recomputed += 2 * 4 * B * length * config.vocab_size  # logits, and their gradients
    return size + recomputed


def _fewest_kept(program: Jaxpr) -> Set[Var]:
    """The kept arrays if a program's cheap operations are done again: fewer bytes, from which the rest can be made."""
    operation_of = {array: operation for operation in program.eqns for array in operation.outvars}
    arguments = {*program.invars, *program.constvars}
    residuals = {array for array in program.outvars if isinstance(array, Var)} - arguments

    def sources(array: Var, replacements: dict[Var, Set[Var]]) -> Set[Var]:
        """The arrays to keep in addition to compute `array` again: itself, if that is not cheap."""
        operation = operation_of.get(array)
        if operation is None or not _is_cheap(operation):
            return {array}
        replacement: set[Var] = set()
        for source in operation.invars:
            if not isinstance(source, Var) or source in arguments or source in residuals:
                continue
            if source not in replacements:
                further = sources(source, replacements)
                replacements[source] = further if _total_bytes(further) < _bytes_of(source) else {source}
            replacement |= replacements[source]
        return replacement

    for array in sorted(residuals, key=_bytes_of, reverse=True):
        replacement = sources(array, {})
        if _total_bytes(replacement) < _bytes_of(array):
            residuals = (residuals - {array}) | replacement
    return residuals


def _is_cheap(operation: JaxprEqn) -> bool:
    if operation.primitive.name == "jit":
        return all(map(_is_cheap, operation.params["jaxpr"].eqns))
    return operation.primitive.name in _CHEAP


def _total_bytes(arrays: Set[Var]) -> int:
    return sum(map(_bytes_of, arrays))


def _bytes_of(array: Var) -> int:
    return _num_bytes([array.aval])


def _config_of_device(config: T5Config, model_devices: int) -> T5Config:
    """The config with the sizes of one device's part of a model whose matrices are split over `model_devices`."""

    def part(size: int) -> int:
        return math.ceil(size / model_devices)

    def sizes(stack: T5Config) -> tuple[dict[str, int], int | None]:
        heads, kv_heads = part(stack.num_heads), stack.heads.num_kv_heads
        if kv_heads is not None:
            kv_heads = next(size for size in range(part(kv_heads), heads + 1) if heads % size == 0)
        return {"num_heads": heads, "mlp_dim": part(stack.mlp_dim)}, kv_heads

    of_decoder, kv_heads = sizes(config)
    changes: dict[str, Any] = {**of_decoder, "heads": dataclasses.replace(config.heads, num_kv_heads=kv_heads)}
    if config.encoder is not config:  # otherwise as wide as the decoder
        of_encoder, kv_heads = sizes(config.encoder)
        changes["encoder_sizes"] = dataclasses.replace(config.encoder_sizes, **of_encoder, num_kv_heads=kv_heads)
    return dataclasses.replace(config, vocab_size=part(config.vocab_size), decoder_start_token_id=0, **changes)


def _recomputed_bytes(config: T5Config, batch: Mapping[str, jax.ShapeDtypeStruct], rows: int) -> int:
    """The bytes of the attention weights of one chunk, or of one layer by blocks; others are counted as kept."""
    longest, pairs = max(array.shape[1] for array in batch.values()), [0]
    if config.attention_chunk_size is not None and longest > config.attention_chunk_size:
        heads = max(config.num_heads, config.encoder.num_heads)
        pairs.append(heads * config.attention_chunk_size * longest)
    behind = None if config.heads.merged else config.windows.decoder
    of_decoder = None if behind is None else (behind, behind if "decoder_causal_attention" in batch else 0)
    stacks = (
        (config.windows.encoder, config.encoder.num_heads, "encoder_input_tokens"),
        (of_decoder, config.num_heads, "decoder_target_tokens"),
    )
    for window, heads, tokens in stacks:
        if window is None or tokens not in batch:
            continue
        length = batch[tokens].shape[1]
        if length > Blocks.of_window(length, *window).keys:
            pairs.append(heads * Blocks.of_window(length, *window).pairs(length))
    return 4 * rows * max(pairs)


def _num_bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def bytes_on_device(tree: Any, shardings: Any) -> int:
    """The bytes of a tree on one device."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in pairs)
