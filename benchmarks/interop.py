"""How far models of published sizes, imported and exported again, are from what transformers computes.

    python -m benchmarks.interop t5-small byt5-small      some of the sizes; without names, all (some minutes, 8 GB)
    python -m benchmarks.interop families                 the small models of tests/goldens/families

Checkpoints with random weights are made by transformers (`make bench-peers`, or T5XPG_TORCH_PYTHON), imported, exported
again, and their logits and greedy answers compared on the way in and on the way out. Prints the rows of the table in
docs/interop.md.
"""

import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file

from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.exchange import to_transformers
from t5xpg.exchange.huggingface.transformers_check import python_with_torch, run_with
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import assembly, config
from t5xpg.models.decoding import greedy
from t5xpg.models.model import Model
from t5xpg.run.directory import RunDirectory

THEIRS = Path(__file__).with_name("interop_transformers.py")
FAMILIES = Path(__file__).parent.parent / "tests" / "goldens" / "families"
_UNTIED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_SMALL = {"d_model": 512, "d_ff": 1024, "d_kv": 64, "num_heads": 6, "num_layers": 8, "vocab_size": 32128, **_UNTIED}
_BYT5 = {"d_model": 1472, "d_ff": 3584, "num_layers": 12, "num_decoder_layers": 4, "vocab_size": 384}
_FIRST = {"feed_forward_proj": "relu", "d_kv": 64, "vocab_size": 32128}
# model_type and sizes as they are published
SIZES = {
    "t5-small": ("t5", {**_FIRST, "d_model": 512, "d_ff": 2048, "num_heads": 8, "num_layers": 6}),
    "t5-base": ("t5", {**_FIRST, "d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": 12}),
    "t5-v1_1-small": ("t5", _SMALL),
    "t5-v1_1-base": ("t5", {**_SMALL, "d_model": 768, "d_ff": 2048, "num_heads": 12, "num_layers": 12}),
    "byt5-small": ("t5", {**_SMALL, **_BYT5}),
    "mt5-small": ("mt5", {**_SMALL, "vocab_size": 250112}),
    "umt5-small": ("umt5", {**_SMALL, "vocab_size": 256384}),
}


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


def made(size: str, python: Path, scratch: Path) -> Path:
    """Make a checkpoint of this size and what transformers answers with it; returns the folder."""
    given = scratch / "given"
    model_type, settings = SIZES[size]
    run_with(python, THEIRS, model_type, json.dumps(settings), given).check_returncode()
    return given


def row(name: str, given: Path, scratch: Path) -> str:
    """A row of the table: one checkpoint, imported and exported again."""
    run, loaded, params = imported(given, scratch / "runs")
    answers = load_file(given / "answers.safetensors")
    model = loaded.experiment.model
    logits = logits_of(model, params, answers)
    difference = float(np.abs(logits - answers["logits"]).max())
    is_decoder = "inputs" not in answers  # a decoder continues a text, and is not exported
    decodes = model.for_decoding("LMFeatureConverter") if is_decoder else model
    decode = jax.jit(functools.partial(greedy, decodes, max_decode_length=answers["generated"].shape[1]))
    same = np.array_equal(
        decode(params, answers["targets"][:, :6] if is_decoder else answers["inputs"]), answers["generated"]
    )
    largest, exported = float(np.abs(logits).max()), "-"
    if not is_decoder:
        _, out = to_transformers.export(loaded, run)
        assert out is not None
        largest, exported = max(largest, out.largest), f"{out.difference:.1e}"
    answered = "the same" if same else "differ"
    return f"| {name} | {model.num_params:,} | {difference:.1e} | {exported} | {largest:.1f} | {answered} |"


def main() -> None:
    """Print the rows."""
    python = python_with_torch()
    if python is None:
        sys.exit("transformers is not installed: `make bench-peers` installs it")
    for name in sys.argv[1:] or SIZES:
        folders = (
            sorted(file.parent for file in FAMILIES.glob("*/answers.safetensors")) if name == "families" else [None]
        )
        for folder in folders:
            with tempfile.TemporaryDirectory() as scratch:
                given = folder or made(name, python, Path(scratch))
                print(row(given.name if folder else name, given, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
