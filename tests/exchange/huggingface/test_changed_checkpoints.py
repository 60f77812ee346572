"""A checkpoint of which one thing is another: what is imported computes what transformers computes, or is refused.

The changes and transformers' logits: tests/goldens/make_changed_goldens.py.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.exchange.from_transformers import model_of
from t5xpg.exchange.huggingface import t5gemma, transformers_check
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.models.model import Model, Params
from tests.refusals import refused
from tests.small_models import FAMILIES, GOLDENS, seq2seq

PEERS = paths.REPOSITORY / ".venv-bench" / "bin" / "python"
FILE = GOLDENS / "changed" / "logits.safetensors"
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
            place.pop(name, None)
        else:
            place[name] = change["settings"][path]
    if (name := change.get("tensor")) is not None:
        shape = (16,) if "eoi" in name else (32, 3) if "relative" in name else (48, 16)
        tensors[name] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return settings, tensors


def logits(model: Model, params: Params, answers: Mapping[str, np.ndarray]) -> np.ndarray:
    """The logits of SHOWN. The decoder begins with the id that goldens begin with, whatever the checkpoint says."""
    if model.config.decoder_start_token_id:
        model = dataclasses.replace(model, config=dataclasses.replace(model.config, decoder_start_token_id=2))
    batch = seq2seq(answers.get("inputs", answers["targets"]), answers["targets"])
    with jax.default_matmul_precision("highest"):
        return np.asarray(model.logits(params, batch))[SHOWN]  # compiled, each change would be a program of its own


# settings that are refused though transformers' logits are the same: it reads some in another version, or asks for none
STRICT = {
    "bos_token_id", "decoder_start_token_id", "hidden_activation", "pad_token_id", "partial_rotary_factor",
    "per_layer_config", "pruned_heads", "rms_norm_eps", "rope_local_base_freq", "rope_parameters", "rope_theta",
    "tie_encoder_decoder", "transformers_version", "use_bidirectional_attention",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_one_change(name: str) -> None:
    answers, computed, strict = family(name)[2], {}, set()
    for number, change in enumerate(CHANGES):
        if change["family"] != name:
            continue
        try:
            model, params = model_of(*changed(change))
        except UserError:
            if change["outcome"] == "same":
                strict |= {path.split(".")[-1] for path in change.get("absent", change.get("settings", [""]))}
            continue
        assert change["outcome"] != "random", change
        # what is computed with the same numbers is computed once
        key = (model.config, *(leaf.tobytes() for leaf in jax.tree.leaves(params)))
        if key not in computed:
            computed[key] = logits(model, params, answers)
        expected = answers["logits"][SHOWN]
        if change["outcome"] == "other":
            with safe_open(FILE, "numpy") as file:
                expected = file.get_tensor(str(number))
        assert np.abs(computed[key] - expected).max() < 1e-4, change
    assert strict <= STRICT


def test_an_embedding_by_another_name() -> None:
    """As MADLAD's checkpoints have it, with a decoder's or both, and an output matrix of its own."""
    settings, tensors, answers = family("t5_1_1")
    others = {name: tensor for name, tensor in tensors.items() if name != "shared.weight"}
    encoder, decoder = (f"{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    for names in ((decoder,), (encoder, decoder)):
        model, params = model_of(settings, others | dict.fromkeys(names, tensors["shared.weight"]))
        assert np.abs(logits(model, params, answers) - answers["logits"][SHOWN]).max() < 1e-4
    with refused(encoder, decoder):
        model_of(settings, others | {decoder: tensors["shared.weight"], encoder: tensors["lm_head.weight"]})
    with refused("shared.weight"):
        model_of(settings, others)


def test_a_tensor_by_two_names() -> None:
    settings, tensors, _ = family("t5gemma2")
    name = "model.encoder.norm.weight"
    with refused(longer := name.replace("encoder", "encoder.text_model")):
        model_of(settings, {**tensors, longer: tensors[name]})


def test_what_exports_write() -> None:
    """What transformers' T5Gemma 2 reads and does not use is not written; the id of images is none of the text's."""
    model, params = model_of(*family("t5gemma2")[:2])
    written = t5gemma.to_transformers(model.config, params, 1)[0]
    assert written["encoder"]["eoi_token_index"] == -1
    with refused("Heads.logit_softcap"):
        heads = dataclasses.replace(model.config.heads, logit_softcap=2.0)
        t5gemma.to_transformers(dataclasses.replace(model.config, heads=heads), params, 1)
    model, params = model_of(*family("t5gemma")[:2])
    with refused("decoder_start_token_id"):
        t5gemma.to_transformers(dataclasses.replace(model.config, decoder_start_token_id=0), params, 1)


@pytest.mark.parametrize("name", ["t5", "gemma2"])
def test_an_import_is_compared(runs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With stands-in for transformers' answers."""
    wrong, folder = 0.0, FAMILIES / name

    def theirs(python: Path, given: Path, arrays: Any, settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        assert (given, settings["texts"], settings["max_new_tokens"]) == (folder, [], 0)
        assert settings["auto_class"] == ("AutoModelForCausalLM" if name == "gemma2" else "AutoModelForSeq2SeqLM")
        model, params = model_of(*family(name)[:2])
        targets = np.pad(arrays["decoder_inputs"][:, 1:], ((0, 0), (0, 1)), constant_values=2)
        with jax.default_matmul_precision("highest"):
            found = np.asarray(model.logits(params, seq2seq(arrays["inputs"], targets)))
        said = {"ids": [], "model": "M", "tokenizer": None, "versions": {"torch": "1", "transformers": "2"}}
        return {"logits": found + wrong}, said

    monkeypatch.setattr(transformers_check, "_theirs", theirs)
    monkeypatch.setenv(transformers_check.PYTHON_VARIABLE, sys.executable)
    import_checkpoint(str(folder), runs)
    wrong = 0.01
    with refused("logits differ", f"{transformers_check.PYTHON_VARIABLE}=/path"):
        import_checkpoint(str(folder), runs, name="other")
    assert [path.name for path in runs.iterdir()] == [name]


@pytest.mark.process
@pytest.mark.skipif(not PEERS.is_file(), reason="make bench-peers installs transformers")
def test_imports_in_transformers(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(transformers_check.PYTHON_VARIABLE, str(PEERS))
    for name in ("byt5", "gemma3_text"):
        import_checkpoint(str(FAMILIES / name), runs)
        assert "compared: " in capsys.readouterr().out
