"""Parameters of T5X's layouts: what is computed with them is what T5X computes."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from t5xpg.exchange.formats.t5x_files import T5X, StoredArray, StoredCheckpoint, open_checkpoint
from t5xpg.exchange.t5x.adafactor import SLOTS, accumulators_of, new_param_states, param_states
from t5xpg.exchange.t5x.mesh_tensorflow import t5x_name
from t5xpg.exchange.t5x.params import StoredState, config_of, params_of, state_of
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.positions import Buckets
from t5xpg.optim.optimizers import Adafactor
from tests.refusals import refused
from tests.small_models import seq2seq
from tests.t5x_goldens import CASES, CONTENTS, SIZES, answers, described, unpack


@pytest.mark.parametrize("case", CASES)
def test_the_model_computes_what_t5x_computes(case: str, tmp_path: Path) -> None:
    state = state_of(open_checkpoint(unpack(case, tmp_path)))
    config = config_of(state)
    tied, scalable = "tied" in case, "scalable" in case
    assert config == T5Config(
        vocab_size=264 if case == "t5_1_1" else 48, **SIZES, logits_via_embedding=tied,
        mlp_activations=("relu",) if tied else ("gelu", "linear"), positions=Buckets(in_every_layer=scalable),
    )  # fmt: skip
    params = params_of(state, config)
    expected = answers(case)
    batch = seq2seq(expected["inputs"], expected["targets"])
    with jax.default_matmul_precision("highest"):
        logits = np.asarray(jax.jit(EncoderDecoderModel(config).logits)(params, batch))
    assert np.abs(logits - expected["logits"])[expected["targets"] > 0].max() < 1e-4


def test_adafactor_is_taken_and_given_back(tmp_path: Path) -> None:
    state = state_of(open_checkpoint(unpack("mesh_tensorflow", tmp_path)))
    params = params_of(state, config_of(state))
    step, trees = accumulators_of(state, params)
    assert step == 5
    states = flatten_dict({"state": {"param_states": param_states(trees)}}, sep="/")
    assert {name: described(array) for name, array in states.items() if array.shape != (1,)} == {
        name: said for name, said in CONTENTS["mesh_tensorflow"].items() if name.startswith("state/param_states")
    }
    assert len(states) == 4 * len(flatten_dict(params, sep="/"))
    # new ones are those that optax begins with, with the settings of gin/optimizers/adafactor.gin
    axes = {"factored": ("embed", "mlp"), "whole": ("embed", "mlp"), "scale": ("embed",)}
    shapes = {"factored": (128, 256), "whole": (256, 127), "scale": (256,)}
    given = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    begun = Adafactor(1.0).transformation(axes).init(given)[0]
    expected = param_states({slot: getattr(begun, slot) for slot in SLOTS})
    jax.tree.map(np.testing.assert_array_equal, new_param_states(given), expected)


def stored(arrays: Mapping[str, np.ndarray]) -> StoredCheckpoint:
    def one(array: np.ndarray) -> StoredArray:
        return StoredArray(array.shape, lambda: array)

    return StoredCheckpoint(Path("given"), T5X, {name: one(array) for name, array in arrays.items()}, ())


def a_model() -> dict[str, np.ndarray]:
    abstract = EncoderDecoderModel(T5Config(vocab_size=48, **SIZES)).abstract_params()
    return {
        f"target/{name}": np.zeros(leaf.shape, np.float32) for name, leaf in flatten_dict(abstract, sep="/").items()
    }


def test_what_does_not_go_together_is_named() -> None:
    given = a_model()
    tables = {"target/token_embedder/embedding": np.zeros((48, 16))}
    key = "layers_1/self_attention/key"
    for arrays, named in (
        ({name: array for name, array in given.items() if key not in name}, f"decoder/{key}/kernel"),
        ({**given, "target/encoder/adapter/kernel": np.zeros(2)}, "encoder/adapter/kernel"),
        ({**given, "target/decoder/layers_0/mlp/wo/kernel": np.zeros((16, 16))}, "(16, 16)"),
        ({f"target/decoder/{name.removeprefix('target/')}": array for name, array in given.items()}, "decoder alone"),
        ({"params/a": np.zeros(3)}, "target/token_embedder/embedding"),
        (tables, "no layers of an encoder"),
        ({**given, "target/encoder/relpos_bias/rel_embedding": np.zeros((5, 32))}, "5 heads"),
        ({**tables, "target/encoder/encoder/pre_mlp_layer_norm/scale": np.zeros((5, 7))}, "(5, 7)"),
    ):
        with refused(named):
            params_of(state := state_of(stored(arrays)), config_of(state))
    with refused("('relu',)"):
        config_of(state_of(stored(given)), ("relu",))


def test_optimisers_that_are_not_taken(tmp_path: Path) -> None:
    def check(state: StoredState, named: str) -> None:
        with refused(named):
            accumulators_of(state, params_of(state, config_of(state)))

    check(state_of(open_checkpoint(unpack("scalable_scanned", tmp_path))), "in one array")
    check(state_of(stored(a_model())), "no optimiser")
    state = state_of(open_checkpoint(unpack("t5_1_1", tmp_path)))
    name = "state/param_states/token_embedder/embedding"
    for slot, shape, named in (("m", (264, 16), "momentum"), ("v_row", (3,), "Adafactor")):
        wrong = {**state.arrays, f"{name}/{slot}": StoredArray(shape, lambda shape=shape: np.ones(shape))}
        check(dataclasses.replace(state, arrays=wrong), named)


def test_names_of_mesh_tensorflow() -> None:
    """Those that T5's released checkpoints have besides the fixture's."""
    assert t5x_name("encoder/rms_norm/scale") == "target/encoder/encoder_norm/scale"
    norm = "encoder/block_011/layer_001/rms_norm/scale_slot_v"
    assert t5x_name(norm) == "state/param_states/encoder/layers_11/pre_mlp_layer_norm/scale/v"
    assert t5x_name("decoder/block_000/layer_002/DenseReluDense/wi/kernel") == "target/decoder/layers_0/mlp/wi/kernel"
    for name in ("layer_000/EncDecAttention/q", "layer_002/layer_norm/scale"):
        assert t5x_name(f"encoder/block_000/{name}") is None
