"""An experiment assembled on devices: the mesh, the shardings of the state, and the compiled steps."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.stages import Compiled, Traced

from t5xpg.base.errors import UserError
from t5xpg.data.batch import longest_array
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.distributed import (
    batch_parts,
    batch_sharding,
    check_batch_size,
    host_rows,
    jit_create,
    jit_eval_step,
    jit_train_step,
    make_mesh,
    params_shardings,
    replicated,
    state_shardings,
    with_shardings,
)
from t5xpg.distributed.host_rows import HostRows
from t5xpg.experiment.experiment import Experiment
from t5xpg.models import matmul
from t5xpg.models.adapters import trained_axes
from t5xpg.models.model import Params
from t5xpg.models.rng import stream_key
from t5xpg.optim import state, step
from t5xpg.optim.state import TrainState

Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Assembly:
    """An experiment on a mesh. `abstract_state` has the shapes, dtypes and shardings of the state."""

    experiment: Experiment
    mesh: Mesh
    shardings: TrainState
    abstract_state: TrainState

    def new_state(self) -> TrainState:
        """The state before the first update, from the experiment's seed.

        Small programs make the parameters one by one in the host's memory: the bits are the same on all devices. For
        T5 1.1 base, a single program that makes the whole state takes minutes to compile for a GPU (H200, jax 0.11.2).
        """
        shardings = self.shardings.params if self.experiment.adapter is None else self.shardings.frozen
        with jax.default_device(_host()):
            params = self.experiment.base_model.init(self._key)
        return self.state_of(self._on_mesh(params, shardings))

    def state_to_time(self) -> TrainState:
        """A new state for timing updates. A teacher's parameters are zeros, which does not change the time."""
        state, frozen = self.new_state(), self.abstract_state.frozen
        if self.experiment.teacher is None:
            return state
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), frozen)
        return dataclasses.replace(state, frozen=zeros)

    def state_of(self, params: Params) -> TrainState:
        """The state before the first update, made from `params`: the parameters of the experiment's `base_model`, on
        the mesh. The memory of `params` is reused (donated)."""
        # `initial_state.begin` adds the parameters of a teacher
        frozen = self.shardings.frozen if self.experiment.teacher is None else None
        return jit_create(self._make_state, dataclasses.replace(self.shardings, frozen=frozen), params)

    def _make_state(self, params: Params) -> TrainState:
        model, optimizer, adapter = self.experiment.model, self.experiment.optimizer, self.experiment.adapter
        new, frozen = (params, None) if adapter is None else (adapter.init(self._key, model, params), params)
        averaged = self.experiment.ema_decay is not None
        return state.of_parameters(model, optimizer, new, averaged=averaged, adapter=adapter, frozen=frozen)

    @property
    def _key(self) -> jax.Array:
        return stream_key(self.experiment.random_seed, "parameters")

    @functools.cached_property
    def model_params_shardings(self) -> Any:
        """The shardings of `model_params`."""
        model, experiment = self.experiment.model, self.experiment
        if experiment.adapter is None:
            return self.shardings.params
        abstract = model.abstract_params()
        return params_shardings(model.logical_axes(), abstract, self.mesh, experiment.mesh.rules)

    def model_params(self, trained: Params, frozen: Params | None) -> Params:
        """The model's parameters: `trained` (of a state or checkpoint), or an adapter's result from it and `frozen`."""
        if self.experiment.adapter is None:
            return trained
        return jax.jit(self.experiment.adapter.applied, out_shardings=self.model_params_shardings)(frozen, trained)

    def compile_train_steps(self) -> Callable[..., Any]:
        """`compile_train_step` for every length bucket; a call runs the program for its batch's length."""
        buckets = self.experiment.train_dataset.buckets
        compiled = {length: self.compile_train_step(bucket) for length, bucket in buckets.items()}
        if len(compiled) == 1:
            return next(iter(compiled.values()))
        return lambda state, batch, token_bytes: compiled[longest_array(batch)](state, batch, token_bytes)

    def compile_train_step(self, dataset: DatasetConfig | None = None) -> Compiled:
        """The compiled update: (state, batch, token_bytes) -> (state, metrics). The old state's memory is reused.

        dataset: gives the shapes of the batches; None for the training data, with length buckets the longest bucket.
        token_bytes: int32 [vocab_size of the model], see `token_bytes`. It is an argument, so that compiling does not
        wait for the vocabulary.
        """
        return matmul.compile_program(self.traced_train_step(dataset).lower())

    def traced_train_step(self, dataset: DatasetConfig | None = None) -> Traced:
        """The traced update, which `compile_train_step` compiles."""
        experiment = self.experiment

        def update(state: TrainState, batch: Batch, token_bytes: Any) -> tuple[TrainState, Any]:
            return step.make_train_step(
                experiment.model,
                experiment.optimizer,
                experiment.loss,
                num_microbatches=experiment.num_microbatches,
                skip_nonfinite=experiment.skip_nonfinite > 0,
                ema_decay=experiment.ema_decay,
                adapter=experiment.adapter,
                teacher=experiment.teacher,
                seed=experiment.random_seed,
                token_bytes=token_bytes,
            )(state, batch)

        jitted = jit_train_step(update, self.mesh, self.shardings, 1, experiment.mesh.rules)
        batch = abstract_batch(dataset or experiment.train_dataset)
        return jitted.trace(self.abstract_state, batch, self._abstract_token_bytes)

    def compile_eval_step(self) -> Compiled:
        """The compiled measurement: (params, batch, token_bytes) -> metrics."""
        experiment = self.experiment

        def measure(params: Params, batch: Batch, token_bytes: Any) -> Any:
            return step.make_eval_step(experiment.model, experiment.loss, token_bytes=token_bytes)(params, batch)

        jitted = jit_eval_step(measure, self.mesh, self.model_params_shardings, 1, experiment.mesh.rules)
        params = with_shardings(experiment.model.abstract_params(), self.model_params_shardings)
        batch = abstract_batch(experiment.eval_dataset)
        return matmul.compile_program(jitted.lower(params, batch, self._abstract_token_bytes))

    def token_bytes(self, vocabulary: Vocabulary) -> jax.Array:
        """The UTF-8 bytes of every id, on every device: int32 [vocab_size of the model], 0 past the vocabulary's ids.

        Raises UserError where the vocabulary has ids that the model has no embedding for.
        """
        check_vocabulary(vocabulary, self.experiment)
        counts = np.zeros(self._abstract_token_bytes.shape, np.int32)
        counts[: vocabulary.size] = vocabulary.token_bytes()
        return self._on_mesh(counts, replicated(self.mesh))

    @property
    def _abstract_token_bytes(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.experiment.model.config.vocab_size,), np.int32)

    @functools.cached_property
    def batch_sharding(self) -> NamedSharding:
        """The sharding of a batch: its rows are split over the devices."""
        return batch_sharding(self.mesh)

    def on_devices(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """A whole batch, which every process has, as arrays on the mesh."""
        return HostRows.of_all(len(next(iter(batch.values())))).to_global_arrays(batch, self.batch_sharding)

    def rows_of_host(self, process: int) -> HostRows:
        """The rows of a training batch that a process reads."""
        dataset = self.experiment.train_dataset
        return host_rows.rows_of_host(self.batch_sharding, dataset.batch_size, dataset.num_virtual_shards, process)

    def _on_mesh(self, tree: Any, shardings: Any) -> Any:
        """Put values that every process has onto the devices of all processes."""
        return host_rows.put_on_mesh(tree, shardings) if jax.process_count() > 1 else jax.device_put(tree, shardings)

    @functools.cached_property
    def devices(self) -> dict[str, Any]:
        """The devices of the mesh: {"platform", "kind", "count", "mesh"}, and with several processes "processes"."""
        first = self.mesh.devices.flat[0]
        return {
            "platform": first.platform,
            "kind": first.device_kind,
            "count": self.mesh.devices.size,
            "mesh": dict(self.mesh.shape),
            **({"processes": jax.process_count()} if jax.process_count() > 1 else {}),
        }


def _host() -> jax.Device | None:
    """The host as a device; None if JAX_PLATFORMS excludes it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def abstract_batch(dataset: DatasetConfig, rows: int | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of a dataset's batch. rows: their number; None for a whole batch."""
    features = dataset.batch_spec(rows).features()
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in features.items()}


def assemble(experiment: Experiment) -> Assembly:
    """An experiment on the available devices. Raises UserError where it does not fit them."""
    mesh = make_mesh(experiment.mesh)
    host_rows.require_devices_of_all(mesh, jax.process_count())
    check_batches(experiment, mesh)
    abstract = abstract_state(experiment)
    shardings = shardings_of_state(experiment, abstract, mesh)
    return Assembly(experiment, mesh, shardings, with_shardings(abstract, shardings))


def abstract_state(experiment: Experiment) -> TrainState:
    """The experiment's state with jax.ShapeDtypeStruct at its leaves."""
    return state.abstract(
        experiment.model,
        experiment.optimizer,
        averaged=experiment.ema_decay is not None,
        adapter=experiment.adapter,
        frozen=experiment.frozen_model,
    )


def shardings_of_state(experiment: Experiment, abstract: TrainState, mesh: Mesh) -> TrainState:
    """A NamedSharding for every array of the experiment's state."""
    axes = trained_axes(experiment.model, experiment.adapter)
    frozen = None if experiment.frozen_model is None else experiment.frozen_model.logical_axes()
    return state_shardings(axes, abstract, mesh, experiment.mesh.rules, frozen)


def check_batches(experiment: Experiment, mesh: Mesh) -> None:
    """Raise UserError where the rows of a batch, of any length bucket, do not divide over devices and microbatches, or
    those of the evaluation over devices."""
    for length, bucket in experiment.train_dataset.buckets.items():
        try:
            check_batch_size(bucket.batch_size, mesh, experiment.num_microbatches)
        except UserError as error:
            if bucket.batch_size == experiment.train_dataset.batch_size:
                raise
            raise UserError(
                f"LENGTH_BUCKETS: batches of {length} tokens have {bucket.batch_size} rows, which do not divide into "
                f"{batch_parts(mesh)} data-parallel devices x {experiment.num_microbatches} microbatches. "
                "Choose another length in its place."
            ) from error
    rows, devices = experiment.eval_dataset.batch_size, batch_parts(mesh)
    if rows % devices:
        raise UserError(
            f"The batch of the evaluation, {rows} rows, does not divide into {devices} data-parallel devices: set "
            f"train_eval/DatasetConfig.batch_size to a multiple of {devices}."
        )


def check_vocabulary(vocabulary: Vocabulary, experiment: Experiment) -> None:
    """Raise UserError where the vocabulary has ids that the model has no embedding for."""
    size = experiment.model.config.vocab_size
    if vocabulary.size > size:
        raise UserError(
            f"The vocabulary of {experiment.train_dataset.mixture_or_task_name} has {vocabulary.size} ids and the "
            f"model {size} embeddings: set VOCAB_SIZE = {vocabulary.size}, or more."
        )
