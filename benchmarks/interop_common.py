"""What the comparisons with transformers and with T5X have in common: names of sizes, imports, logits."""

import ast
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import assembly, config
from t5xpg.models.model import Model
from t5xpg.run.directory import RunDirectory


def sizes(program: Path) -> list[str]:
    """The keys of SIZES in a program of another environment, which cannot be imported here."""
    for one in ast.parse(program.read_text(encoding="utf-8")).body:
        if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(one.value, ast.Dict):
            target = one.targets[0] if isinstance(one, ast.Assign) else one.target
            if ast.unparse(target) == "SIZES":
                return [ast.literal_eval(key) for key in one.value.keys if key is not None]
    raise ValueError(f"{program} has no SIZES")


def imported(checkpoint: Path, runs: Path, **options: Any) -> tuple[Path, config.LoadedConfig, Any]:
    """Import a checkpoint; returns its run, its experiment, and its parameters."""
    os.environ["T5XPG_RUNS_DIR"] = str(runs)
    run = import_checkpoint(str(checkpoint), runs, name="imported", **options)
    loaded = config.load("imported")
    built = assembly.assemble(loaded.experiment)
    return run, loaded, parameters_and_vocabulary(RunDirectory(run), loaded.experiment, built)[0]


def logits_of(model: Model, params: Any, tokens: Mapping[str, np.ndarray]) -> np.ndarray:
    """Logits [B, T, V]. tokens: `targets` [B, T] and, if there is an encoder, `inputs` [B, S]."""
    targets = tokens["targets"]
    batch = {"decoder_target_tokens": targets, "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0)))}
    if "inputs" in tokens:
        batch["encoder_input_tokens"] = tokens["inputs"]
    return np.asarray(jax.jit(model.logits)(params, batch))
