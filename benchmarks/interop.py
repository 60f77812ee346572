"""How far models of published sizes, imported and exported again, are from what transformers computes.

    python -m benchmarks.interop t5-small byt5-small      some of the sizes; without names, all (some minutes, 8 GB)
    python -m benchmarks.interop families                 the small models of tests/goldens/families

Checkpoints with random weights are made by transformers (`make bench-peers`, or T5XPG_TORCH_PYTHON), imported, exported
again, and their logits and greedy answers compared on the way in and on the way out. Prints the rows of the table in
docs/interop.md.
"""

import ast
import functools
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


def made(size: str, python: Path, scratch: Path) -> Path:
    """Make a checkpoint of this size and what transformers answers with it; returns the folder."""
    given = scratch / "given"
    run_with(python, THEIRS, size, given).check_returncode()
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


def main() -> int:
    """Print the rows."""
    python = python_with_torch()
    if python is None:
        sys.exit("transformers is not installed: `make bench-peers` installs it")
    for name in sys.argv[1:] or sizes(THEIRS):
        folders = (
            sorted(file.parent for file in FAMILIES.glob("*/answers.safetensors")) if name == "families" else [None]
        )
        for folder in folders:
            with tempfile.TemporaryDirectory() as scratch:
                given = folder or made(name, python, Path(scratch))
                print(row(given.name if folder else name, given, Path(scratch)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
