"""The state of an experiment, however it is made."""

from pathlib import Path

import jax
import numpy as np
import pytest

from t5xpg import distributed
from t5xpg.base.paths import EXPERIMENTS
from t5xpg.experiment import assembly, config
from t5xpg.models.rng import stream_key
from t5xpg.optim import state


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_made_one_by_one_are_those_of_one_program(tied: bool) -> None:
    overrides = [
        "encoder_decoder.T5Config.emb_dim=48",
        "encoder_decoder.T5Config.num_encoder_layers=2",
        "encoder_decoder.T5Config.num_decoder_layers=2",
        f"encoder_decoder.T5Config.logits_via_embedding={tied}",
        "RANDOM_SEED=3",
    ]
    experiment = config.load(str(Path(EXPERIMENTS) / "byt5_tiny_demo" / "byt5_tiny_demo.gin"), overrides).experiment
    built = assembly.assemble(experiment)
    key = stream_key(experiment.random_seed, "parameters")
    whole = distributed.jit_create(lambda: state.create(experiment.model, experiment.optimizer, key), built.shardings)
    parts = built.new_state()
    assert jax.tree.structure(parts) == jax.tree.structure(whole)
    for one, other in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        assert one.sharding == other.sharding
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
