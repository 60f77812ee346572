"""How far models of published sizes, imported and exported again, are from what transformers computes.

    python -m benchmarks.interop t5-small byt5-small      some of the sizes; without names, all (some minutes, 8 GB)
    python -m benchmarks.interop families                 the small models of tests/goldens/families

Checkpoints with random weights are made by transformers (`make bench-peers`, or T5XPG_TORCH_PYTHON), imported, exported
again, and their logits and greedy answers compared on the way in and on the way out. Prints the rows of the table in
docs/interop.md.
"""

import functools
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file

from benchmarks.interop_common import imported, logits_of, sizes
from t5xpg.exchange import to_transformers
from t5xpg.exchange.huggingface.transformers_check import python_with_torch, run_with
from t5xpg.models.decoding import greedy

THEIRS = Path(__file__).with_name("interop_transformers.py")
FAMILIES = Path(__file__).parent.parent / "tests" / "goldens" / "families"


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
        folders = sorted(file.parent for file in FAMILIES.glob("*/answers.safetensors")) if name == "families" else []
        for folder in folders:
            with tempfile.TemporaryDirectory() as scratch:
                print(row(folder.name, folder, Path(scratch)), flush=True)
        if not folders:
            with tempfile.TemporaryDirectory() as scratch:
                print(row(name, made(name, python, Path(scratch)), Path(scratch)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
