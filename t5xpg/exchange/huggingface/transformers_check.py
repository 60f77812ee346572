"""Compares a folder as transformers loads it, where that is installed, with the model of this program.

transformers runs in a process of its own (`transformers_outputs`): torch is in another environment than this program.
"""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.huggingface.architectures import TOKENS, Exported
from t5xpg.exchange.huggingface.tokenizer_files import expected_ids, sample_texts, tokenizer_type
from t5xpg.models.decoding import greedy
from t5xpg.models.model import Model

PYTHON_VARIABLE = "T5XPG_TORCH_PYTHON"
NOT_CHECKED = (
    "not compared in transformers: no Python that has it and torch was found, or none was allowed. `make bench-peers` "
    f"installs both, or name a Python that has them: {PYTHON_VARIABLE}=/path/to/python"
)
TOLERANCE = 1e-4  # of a logit, relative to the largest logit where that is above 1
_ROWS, _SOURCE, _TARGET, _ANSWER = 4, 48, 24, 24  # what is compared: rows, and tokens of each input, target, answer


@dataclass(frozen=True)
class LogitComparison:
    """A description of the comparison, the largest difference between two logits, and the largest logit."""

    text: str
    difference: float
    largest: float


def python_with_torch() -> Path | None:
    """A Python with torch and transformers: the one named, this one, or that of `make bench-peers`; None without."""
    python = os.environ.get(PYTHON_VARIABLE)
    if python is not None:
        if python in ("", "0"):
            return None
        if not Path(python).is_file():
            raise UserError(f"{PYTHON_VARIABLE}={python} is not there: expected a Python with torch and transformers.")
        return Path(python)
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return Path(sys.executable)
    peers = paths.REPOSITORY / ".venv-bench" / "bin" / "python"
    return peers if peers.is_file() else None


def run_with(python: Path | str, program: Path, *arguments: Path | str) -> subprocess.CompletedProcess[str]:
    """Run a program of a single file with a Python of another environment, which may be older than this one."""
    with tempfile.TemporaryDirectory() as scratch:
        # a copy: what lies beside the program is not to be imported, and Python has -P since 3.11 only
        command = [str(python), shutil.copy(program, scratch), *map(str, arguments)]
        # without what would lead the other Python to this one's packages
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return subprocess.run(command, capture_output=True, text=True, env=environment)


def check_in_transformers(
    folder: Path,
    exported: Exported,
    model: Model,
    converter: str | None,
    params: Any,
    vocabulary: Vocabulary,
    adapter: Path | None = None,
) -> LogitComparison | None:
    """Compare logits, greedy answers and ids of texts; None where transformers is not installed.

    exported: how transformers loads the folder. converter: None leaves out answers and texts, for folders of others,
    which say how to generate. adapter: a folder that peft loads over the other one. Raises UserError where anything
    differs, or where transformers cannot load the folder.
    """
    python = python_with_torch()
    if python is None:
        return None
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, dtype="float32"))
    inputs, targets = _sequences(vocabulary)
    logits, generated = _ours(model, converter, params, vocabulary, inputs, targets)
    texts = [] if converter is None else sample_texts(vocabulary)
    settings = {
        "auto_class": exported.auto_class,
        "prompted": exported.prompted,
        "start_id": model.config.decoder_start_token_id,
        "max_new_tokens": 0 if generated is None else _ANSWER,
        "texts": texts,
        "tokenizer_type": tokenizer_type(exported.config["model_type"], vocabulary),
        "adapter": None if adapter is None else str(adapter),
    }
    arrays = {"inputs": inputs.astype(np.int64), "decoder_inputs": _shifted(targets).astype(np.int64)}
    theirs, answered = _theirs(python, folder, arrays, settings)
    real = inputs > 0 if exported.auto_class == TOKENS else slice(None)
    compared, their_logits = logits[real], theirs["logits"][real]
    difference, largest = float(np.abs(compared - their_logits).max()), float(np.abs(compared).max())
    problems, same = [], [f"logits differ by at most {difference:.1e} (the largest is {largest:.3g})"]
    if not difference <= TOLERANCE * max(1.0, largest):
        problems.append(f"logits differ by up to {difference:.1e}, the largest is {largest:.3g}")
    if generated is not None:
        same.append(f"{len(generated)} greedy answers are the same")
        if not np.array_equal(generated, theirs["generated"]):
            problems.append("greedy answers differ")
    for text, ids in zip(texts, answered["ids"], strict=True):
        if ids != (expected := expected_ids(vocabulary, text)):
            problems.append(f"{text!r} becomes {ids}, and in training {expected}")
    classes, versions = " and ".join(filter(None, (answered["model"], answered["tokenizer"]))), answered["versions"]
    program = f"{classes} of transformers {versions['transformers']} (torch {versions['torch']})"
    if problems:
        raise UserError(
            f"{program} makes something else of {folder} than t5xpg: {'; '.join(problems)}. Where another version made "
            f"it, name a Python that has that one: {PYTHON_VARIABLE}=/path/to/python; 0 leaves out the comparison."
        )
    same += [f"the ids of {len(texts)} texts are the same"] if texts else []
    return LogitComparison(f"{program}: {', '.join(same)}", difference, largest)


def _sequences(vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of different lengths, padded with 0, and targets; the same every time."""
    draw = np.random.default_rng(0)
    # all that the vocabulary has, sentinels among them
    tokens = [token for token in range(vocabulary.size) if token not in (vocabulary.pad_id, vocabulary.eos_id)]
    inputs, targets = (draw.choice(tokens, size=(_ROWS, length)).astype(np.int32) for length in (_SOURCE, _TARGET))
    for row, length in enumerate((_SOURCE, _SOURCE - 11, _SOURCE // 2, 5)):
        inputs[row, length - 1], inputs[row, length:] = vocabulary.eos_id, 0
    return inputs, targets


def _shifted(targets: np.ndarray) -> np.ndarray:
    return np.pad(targets[:, :-1], ((0, 0), (1, 0)))


def _ours(
    model: Model, converter: str | None, params: Any, vocabulary: Vocabulary, inputs: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits and greedy answers in float32; None instead of answers without a converter, or if it does not decode."""
    decodable = None if converter is None else model.for_decoding(converter)
    batch = {"encoder_input_tokens": inputs, "decoder_target_tokens": targets}
    batch["decoder_input_tokens"] = _shifted(targets)
    with jax.default_matmul_precision("highest"):
        logits = np.asarray(jax.jit(model.logits)(params, jax.tree.map(jnp.asarray, batch)))
        if decodable is None:
            return logits, None
        decode = jax.jit(lambda params, tokens: greedy(decodable, params, tokens, _ANSWER, vocabulary.eos_id))
        return logits, np.asarray(decode(params, jnp.asarray(inputs)))


def _theirs(
    python: Path, folder: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Outputs of transformers: its tensors, and the other values (`found` of `transformers_outputs`)."""
    with tempfile.TemporaryDirectory() as scratch:
        inputs, outputs = Path(scratch) / "inputs.safetensors", Path(scratch) / "outputs.safetensors"
        save_file(arrays, inputs, metadata={"settings": json.dumps(settings)})
        process = run_with(python, Path(__file__).with_name("transformers_outputs.py"), folder, inputs, outputs)
        if process.returncode != 0:
            lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
            raise UserError(
                f"transformers cannot load {folder}, as {python} says: {lines[-1] if lines else 'nothing'}. To leave "
                f"out the comparison: {PYTHON_VARIABLE}=0"
            )
        with safe_open(str(outputs), "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(file.metadata()["found"])
