"""A checkpoint of which one thing is another: what is imported computes what transformers computes, or is refused.

The changes and transformers' logits: tests/goldens/make_changed_goldens.py.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from t5xpg.base.errors import UserError
from t5xpg.exchange.from_transformers import compare, model_of
from t5xpg.exchange.huggingface import t5gemma, transformers_check
from t5xpg.exchange.import_folders import ImportedCheckpoint
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Model, Params
from tests.refusals import refused
from tests.small_models import FAMILIES, GOLDENS, seq2seq

FILE = GOLDENS / "changed.safetensors"
SHOWN = ([0, 2], [-1, -1])  # rows and positions of the logits that are kept
with safe_open(FILE, "numpy") as _file:
    CHANGES: list[dict[str, Any]] = json.loads(_file.metadata()["changes"])
NAMES = sorted({change["family"] for change in CHANGES})


@functools.cache
def family(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """config.json, tensors and answers of a golden."""
    folder = FAMILIES / name
    tensors, answers = (load_file(folder / f"{one}.safetensors") for one in ("model", "answers"))
    return json.loads((folder / "config.json").read_text()), tensors, answers


def changed(change: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json and tensors with a change."""
    settings, tensors, _ = family(change["family"])
    settings, tensors = json.loads(json.dumps(settings)), dict(tensors)
    for path in change.get("absent", change.get("settings", ())):
        *objects, name = path.split(".")
        place = functools.reduce(lambda one, key: one[key], objects, settings)
        if "absent" in change:
            del place[name]
        else:
            place[name] = change["settings"][path]
    if (name := change.get("tensor")) is not None:
        shape = (16,) if "eoi" in name else (32, 3) if "relative" in name else (48, 16)
        tensors[name] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return settings, tensors


def logits(model: Model, params: Params, answers: Mapping[str, np.ndarray]) -> np.ndarray:
    batch = seq2seq(answers.get("inputs", answers["targets"]), answers["targets"])
    with jax.default_matmul_precision("highest"):
        return np.asarray(jax.jit(model.logits)(params, batch))[SHOWN]


# changes that transformers does not notice, and that are refused all the same
REFUSED_FOR_NOTHING = ("pad_token_id",)


@pytest.mark.parametrize("name", NAMES)
def test_one_change(name: str) -> None:
    answers, done, refusals = family(name)[2], {}, []
    for number, change in enumerate(CHANGES):
        if change["family"] != name:
            continue
        try:
            model, params = model_of(*changed(change))
        except UserError as error:
            refusals.append((change, str(error)))
            continue
        assert change["outcome"] != "random", change
        # what is computed with the same numbers is computed once
        key = (model.config, *(leaf.tobytes() for leaf in jax.tree.leaves(params)))
        if key not in done:
            done[key] = logits(model, params, answers)
        expected = answers["logits"][SHOWN]
        if change["outcome"] == "other":
            with safe_open(FILE, "numpy") as file:
                expected = file.get_tensor(str(number))
        assert np.abs(done[key] - expected).max() < 1e-4, change
    print(name, len(done), len(refusals))
    for change, said in refusals:
        if change["outcome"] == "same":
            print("SAME", {k: v for k, v in change.items() if k not in ("family", "outcome")}, said[:150])
