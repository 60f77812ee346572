"""Memory from shapes alone, beside what XLA says of the compiled step."""

import math

import jax
import pytest
from jax.sharding import AbstractMesh

from benchmarks import own_step
from benchmarks.jobs import JOBS
from t5xpg import distributed
from t5xpg.check.plan import memory
from t5xpg.experiment import assembly, config
from t5xpg.experiment.assembly import Assembly
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.attention.biases import Blocks
from t5xpg.models.config import T5Config
from t5xpg.models.parts import EncoderSizes, Windows
from t5xpg.optim import state
from tests.experiment.test_config import write_gin

SIZES = {"emb_dim": 64, "mlp_dim": 128, "num_encoder_layers": 1, "num_decoder_layers": 1}
SMALL = ["BATCH_SIZE=8", *(f"encoder_decoder.T5Config.{name}={size}" for name, size in SIZES.items())]
DEEP = ("encoder_decoder.T5Config.num_encoder_layers=6", "encoder_decoder.T5Config.num_decoder_layers=3")
TWO_LAYERS = "encoder_decoder.T5Config.num_encoder_layers=2"
WINDOWS = ("parts.Windows.encoder=(31, 31)", "parts.Windows.pattern=2")
CHUNKS = "encoder_decoder.T5Config.attention_chunk_size=256"


def small(tmp_path, *overrides: str) -> Experiment:
    return config.load(write_gin(tmp_path, optimizer="adamw"), [*SMALL, *overrides]).experiment


def estimated(built: Assembly, **options: bool) -> memory.Memory:
    return memory.estimate(built.experiment, built.abstract_state, built.shardings, built.mesh, **options)


def on_mesh(experiment: Experiment, data: int, model: int) -> memory.Memory:
    """The estimate for devices that are not there."""
    abstract = state.abstract(experiment.model, experiment.optimizer)
    mesh = AbstractMesh((data, model), ("data", "model"))
    shardings = distributed.state_shardings(experiment.model.logical_axes(), abstract, mesh)
    return memory.estimate(experiment, abstract, shardings, mesh)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("DTYPE=bfloat16", "DROPOUT_RATE=0.1"),
        ("NUM_MICROBATCHES=4", "PACK=True"),
        ("SCAN_LAYERS=True", "REMAT_POLICY='dots'", *DEEP),
        ("SCAN_LAYERS=True", "REMAT_POLICY='full'", *DEEP),
        ("BATCH_SIZE=2", "TASK_FEATURE_LENGTHS={'inputs': 512, 'targets': 64}", CHUNKS),
        ("BATCH_SIZE=2", "TASK_FEATURE_LENGTHS={'inputs': 512, 'targets': 64}", *WINDOWS),
        ("BATCH_SIZE=32", "encoder_decoder.T5Config.vocab_size=32768"),  # logits by chunks
    ],
)
def test_the_estimate_is_near_what_the_compiler_needs(tmp_path, overrides) -> None:
    built = assembly.assemble(small(tmp_path, *overrides))
    needed = estimated(built)
    compiled = built.compile_train_step().memory_analysis()
    measured = compiled.argument_size_in_bytes + compiled.temp_size_in_bytes
    low, high = memory.BAND
    assert low * needed.total <= measured <= high * needed.total, (needed, measured)


@pytest.mark.parametrize(
    ("dtype", "settings", "compiled"),
    [
        ("bfloat16", {}, 773),
        ("float32", {}, 1263),
        ("bfloat16", {"scan_layers": True, "remat_policy": "full"}, 326),
        ("bfloat16", {"attention_chunk_size": 128}, 527),
        ("bfloat16", {"dropout_rate": 0.1}, 777),
    ],
)
def test_for_gpus_it_is_near_what_their_compiler_needs(dtype, settings, compiled) -> None:
    """MB of XLA's program for an H100 (jaxlib 0.10.2, products by cuBLAS), compiled once without the device."""
    built = assembly.assemble(own_step.experiment(JOBS["larger"], dtype, **settings))
    assert estimated(built, fuses=True).total / 1e6 == pytest.approx(compiled, rel=0.25)


def test_by_chunks_memory_grows_with_the_length_and_not_with_its_square(tmp_path) -> None:
    def activations(length: int, *overrides: str) -> int:
        lengths = f"TASK_FEATURE_LENGTHS={{'inputs': {length}, 'targets': 16}}"
        return on_mesh(small(tmp_path, "BATCH_SIZE=1", lengths, *overrides), 1, 1).activations

    assert activations(4096) > 3 * activations(2048)
    assert activations(4096, CHUNKS) < 2.05 * activations(2048, CHUNKS)


def test_of_layers_that_are_made_again_the_one_without_a_window_counts(tmp_path) -> None:
    """Every second one has all pairs, and in float32 the weights of its 2 rows and 4 heads are 128 MiB."""
    lengths = "TASK_FEATURE_LENGTHS={'inputs': 2048, 'targets': 64}"
    built = assembly.assemble(small(tmp_path, "REMAT_POLICY='full'", "BATCH_SIZE=2", lengths, *WINDOWS, TWO_LAYERS))
    assert estimated(built).activations > 4 * 2 * built.experiment.model.config.num_heads * 2048**2


def test_windows_have_the_lengths_of_rows_and_the_heads_of_their_stack() -> None:
    sizes = {"vocab_size": 9, "emb_dim": 16, "num_heads": 2, "head_dim": 8}
    of_encoder = T5Config(**sizes, windows=Windows((3, 3)), encoder_sizes=EncoderSizes(num_heads=4))
    rows = {"encoder_input_tokens": (5, 1024), "decoder_target_tokens": (5, 8)}
    pairs = Blocks.of_window(1024, 3, 3).pairs(1024)
    assert memory._recomputed_bytes(of_encoder, shapes(rows), 5) == 4 * 5 * 4 * pairs
    of_prefix = T5Config(**sizes, windows=Windows(decoder=3))
    rows = {"decoder_target_tokens": (5, 1280), "decoder_causal_attention": (5, 1280)}  # inputs and targets in one row
    for ahead in (3, 0):
        pairs = Blocks.of_window(1280, 3, ahead).pairs(1280)
        assert memory._recomputed_bytes(of_prefix, shapes(rows), 5) == 4 * 5 * 2 * pairs
        rows.pop("decoder_causal_attention", None)  # a language model looks back alone


def shapes(arrays: dict[str, tuple[int, int]]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(shape, "int32") for name, shape in arrays.items()}


def test_state_and_gradients_are_exact(tmp_path) -> None:
    experiment = small(tmp_path)
    built = assembly.assemble(experiment)
    leaves = jax.tree.leaves(built.abstract_state)
    for one, size in ((experiment, 4), (small(tmp_path, "NUM_MICROBATCHES=2"), 8)):
        needed = memory.state_and_gradients(one, built.abstract_state, built.shardings)
        assert needed.state == sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        assert needed.gradients == size * experiment.model.num_params


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["parts.Heads.num_kv_heads=1", "encoder_decoder.T5Config.decoder_start_token_id=383"],
        [
            "parts.Embeddings.shared=False", "parts.EncoderSizes.emb_dim=96", "parts.EncoderSizes.num_heads=6",
            "parts.EncoderSizes.num_kv_heads=3",
        ],
    ],
)  # fmt: skip
def test_more_devices_need_less_each(tmp_path, settings: list[str]) -> None:
    experiment = small(tmp_path, *settings)
    one, two_data, two_model = (on_mesh(experiment, *sizes) for sizes in ((1, 1), (2, 1), (1, 2)))
    assert two_data.activations == pytest.approx(one.activations / 2, rel=0.02)
    assert two_data.batch == one.batch // 2
    assert two_data.state == one.state
    assert 0.5 * one.state <= two_model.state < 0.6 * one.state
    assert 0.5 * one.activations <= two_model.activations < 0.8 * one.activations
    assert two_model.batch == one.batch
