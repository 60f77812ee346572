"""How far models that T5X wrote, imported and given back, are from what T5X computes.

    T5X_PYTHON=/path/to/python python -m benchmarks.interop_t5x t5_1_1_small    some of the sizes; without names, all

Checkpoints with random parameters are made by T5X's own networks and classes, imported, and their logits compared; then
exported, restored by T5X with all of its train state, and compared again. Also decoders alone, which are only exported.
Prints the rows of the table in docs/interop.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.interop import imported, logits_of
from benchmarks.step import T5X_MISSING, T5X_PYTHON
from t5xpg.data.batch import LM
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange import to_t5x
from t5xpg.exchange.formats.t5x_files import write_checkpoint
from t5xpg.exchange.huggingface.transformers_check import run_with
from t5xpg.exchange.t5x.adafactor import new_param_states
from t5xpg.exchange.t5x.networks import in_t5x, model_gin
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel

THEIRS = Path(__file__).with_name("in_t5x.py")
LAYOUTS = ("tensorstore", "orbax")
_GATED = {"mlp_activations": ("gelu", "linear"), "logits_via_embedding": False}
_SMALL = {"emb_dim": 512, "num_heads": 6, "head_dim": 64, "mlp_dim": 1024}
_LAYERS = {"num_encoder_layers": 8, "num_decoder_layers": 8}
# T5X's network, and sizes as they are published
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5_1_0_small": (
        "minimal",
        {
            "emb_dim": 512, "num_heads": 8, "head_dim": 64, "mlp_dim": 2048, "vocab_size": 32128,
            "num_encoder_layers": 6, "num_decoder_layers": 6, "mlp_activations": ("relu",),
            "logits_via_embedding": True,
        },
    ),
    "t5_1_1_small": ("minimal", {**_SMALL, **_GATED, **_LAYERS, "vocab_size": 32128}),
    "umt5_small_unscanned": ("scalable", {**_SMALL, **_GATED, **_LAYERS, "vocab_size": 384, "scan_layers": False}),
}  # fmt: skip


def python_with_t5x() -> str:
    """The Python that has T5X; without one the program ends."""
    return os.environ.get(T5X_PYTHON) or sys.exit(f"T5X is {T5X_MISSING}")


def theirs(*arguments: str) -> None:
    """Run the other program; what it says is shown where it fails."""
    done = run_with(python_with_t5x(), THEIRS, *arguments)
    if done.returncode:
        sys.exit(f"T5X: {' '.join(arguments)}\n{done.stderr[-3000:]}")


def difference_in_t5x(folder: Path, tokens: dict[str, np.ndarray], expected: np.ndarray) -> float:
    """How far T5X's logits of the export in `folder` are from those that are expected."""
    save_file(tokens, folder / "tokens.safetensors")
    theirs("answer", str(folder))
    return float(np.abs(load_file(folder / "logits.safetensors")["logits"] - expected).max())


def row(size: str, layout: str, scratch: Path) -> str:
    """A row of the table: one size, imported and exported again."""
    given = scratch / "given"
    given.mkdir()
    network, sizes = SIZES[size]
    theirs("make", network, repr(sizes), layout, str(given))
    run, loaded, params = imported(given, scratch / "runs", tokenizer="bytes")
    answers = load_file(given / "answers.safetensors")
    tokens = {name: answers[name] for name in ("inputs", "targets")}
    logits = logits_of(loaded.experiment.model, params, tokens)
    difference = float(np.abs(logits - answers["logits"]).max())
    out = difference_in_t5x(to_t5x.export(loaded, run), tokens, logits)
    largest = float(np.abs(logits).max())
    count = loaded.experiment.model.num_params
    return f"| {size} | {layout} | {count:,} | {difference:.1e} | {out:.1e} | {largest:.1f} |"


def decoder_row(scratch: Path) -> str:
    """A row of the table: a decoder alone with new parameters, exported."""
    model = DecoderOnlyModel(T5Config(vocab_size=384, num_decoder_layers=8, **_SMALL))  # type: ignore[arg-type]
    params = model.init(jax.random.key(0))
    target = in_t5x(model, params)
    write_checkpoint(scratch, target, 1, new_param_states(target))
    (scratch / "model.gin").write_text(model_gin(model, Vocabulary("bytes", 125), scratch, "a decoder", LM))
    tokens = {"targets": np.random.default_rng(0).integers(2, 384, size=(2, 32)).astype(np.int32)}
    logits = logits_of(model, params, tokens)
    out = difference_in_t5x(scratch, tokens, logits)
    return f"| a decoder alone | tensorstore | {model.num_params:,} | | {out:.1e} | {np.abs(logits).max():.1f} |"


def main() -> None:
    """Print the rows."""
    for size in sys.argv[1:] or SIZES:
        for layout in LAYOUTS:
            with tempfile.TemporaryDirectory() as scratch:
                print(row(size, layout, Path(scratch)), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        print(decoder_row(Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
