"""The LoRA matrices of a run as a folder that the `peft` library loads over a transformers model."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, write_json, write_text
from t5xpg.base.paths import shown
from t5xpg.data.vocab.files import vocabulary_of_record
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.trained_model import INITIAL, frozen_parameters
from t5xpg.exchange import to_transformers
from t5xpg.exchange.formats.weights import SAFETENSORS
from t5xpg.exchange.huggingface.architectures import in_transformers, known_kind
from t5xpg.exchange.huggingface.model_card import MARK
from t5xpg.exchange.huggingface.params import module_names
from t5xpg.exchange.huggingface.tokenizer_files import write_tokenizer
from t5xpg.exchange.huggingface.transformers_check import (
    NOT_CHECKED,
    LogitComparison,
    check_in_transformers,
    python_with_torch,
)
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.adapters import A, B, Lora
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.model import Params
from t5xpg.run.checkpoint.checkpointer import Checkpointer
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.checkpoint.initial_checkpoint import find_checkpoint
from t5xpg.run.directory import RunDirectory

FOLDER = "peft"  # in the run directory, and FORMAT=
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_NO_PEFT = "not compared in peft: {python} cannot import it. {python} -m pip install peft installs it"
_CARD = f"""{MARK}
# {{name}}

LoRA of rank {{rank}} for {{base}}, after {{step:,}} updates.

```python
from peft import PeftModel
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained("{{base}}"{{of_revision}})
model = PeftModel.from_pretrained(model, "path/to/this/folder")
```
"""


def export(loaded: LoadedConfig, path: Path, output: Path | None = None) -> Path:
    """Write the LoRA of the last checkpoint of the run at `path`, without the base model; compare peft's outputs.

    output: the folder, which appears whole or not at all; one that an earlier export wrote is replaced. Returns the
    folder. Raises UserError for a run without LoRA, and where peft has no LoRA, or transformers no base model, that
    computes the same.
    """
    adapter, initial = loaded.experiment.adapter, loaded.experiment.initial
    if not isinstance(adapter, Lora) or initial is None:
        raise UserError(f"FORMAT={FOLDER} is for runs with LoRA: {loaded.name} has none (gin/adapters/lora.gin).")
    experiment, directory = to_transformers.open_run(loaded, path)
    target = directory.path / FOLDER if output is None else output
    to_transformers.require_replaceable(target, to_transformers.has_card(target, CONFIG))
    built = assembly.assemble(experiment)
    with Checkpointer(directory.checkpoints, experiment.checkpoints, read_only=True) as checkpointer:
        step = checkpointer.latest()
        trained, meta = checkpointer.restore_params(step, built.abstract_state.params)
    base = frozen_parameters(built, meta[INITIAL])
    vocabulary = vocabulary_of_record(meta["vocabulary"], directory.vocabulary_model)
    base_run = RunDirectory(find_checkpoint(initial.checkpoint).run)
    imported = base_run.imported() if base_run.exists() else None
    if not imported and meta[INITIAL]["step"] != (last := saved_steps(base_run.checkpoints)[-1]):
        raise UserError(
            f"{loaded.name} was started from step {meta[INITIAL]['step']:,} of {shown(base_run.path)}, and for peft "
            f"its last one, {last:,}, would be the base: FORMAT=hf writes the whole model."
        )
    base_name, revision = shown(base_run.path / to_transformers.FOLDER), ""
    if imported and imported["format"] == "huggingface":
        base_name = imported["source"]
        if not Path(base_name).is_absolute():  # a name on the hub with the commit
            base_name, _, revision = base_name.partition("@")
    with directory_atomically(target.absolute()) as folder:
        config, tensors = in_peft(experiment, adapter, trained, base_name, revision)
        write_json(folder / CONFIG, config)
        save_file(tensors, folder / TENSORS, metadata={"format": "pt"})
        (folder / TENSORS).chmod((folder / CONFIG).stat().st_mode)  # save_file lets only the owner read it
        of_revision = f', revision="{revision}"' if revision else ""
        card = _CARD.format(name=loaded.name, rank=adapter.rank, base=base_name, of_revision=of_revision, step=step)
        write_text(folder / to_transformers.CARD, card)
        comparison = _check(folder, experiment, base, built.model_params(trained, base), vocabulary)
    print(f"{loaded.name} after step {step:,} for peft: {shown(target)}")
    python = python_with_torch()
    not_checked = NOT_CHECKED if python is None else _NO_PEFT.format(python=python)
    print(f"compared: {comparison.text}" if comparison else not_checked, flush=True)
    return target


def in_peft(
    experiment: Experiment, adapter: Lora, trained: Params, base: str, revision: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """adapter_config.json, and the tensors of adapter_model.safetensors: A [r, I] and B [O, r] of each module.

    base, revision: of the model that transformers loads first. Raises UserError where its model or peft has no such
    matrix.
    """
    model = experiment.model
    known_kind(model, (EncoderDecoderModel,), "There is no base model in transformers")
    modules, flat, tensors = module_names(model.config), flatten_dict(trained), {}
    names = sorted({path[:-1] for path in flat})
    if strangers := ["/".join(name) for name in names if "/".join(name) not in modules]:
        raise UserError(
            f"peft has no LoRA that is equal to the one of {strangers[0]}: FORMAT=hf writes the whole model."
        )
    for name in names:
        for part, theirs in ((A, "lora_A"), (B, "lora_B")):
            module = f"base_model.model.{modules['/'.join(name)]}.{theirs}.weight"
            tensors[module] = np.ascontiguousarray(np.asarray(flat[*name, part], np.float32).T)
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "base_model_name_or_path": base,
        "revision": revision or None,
        "target_modules": [modules["/".join(name)] for name in names],
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    return config, tensors


def _check(
    folder: Path, experiment: Experiment, base: Params, whole: Params, vocabulary: Vocabulary
) -> LogitComparison | None:
    """Compare the base model with the folder's LoRA in peft and our merged model; None where peft is not installed."""
    python = python_with_torch()
    if python is None or subprocess.run([python, "-c", "import peft"], capture_output=True, check=False).returncode:
        return None
    model, converter = experiment.model, experiment.eval_dataset.converter
    exported = in_transformers(model, base, vocabulary, prefix_lm=False)
    with tempfile.TemporaryDirectory() as scratch:
        below = Path(scratch)
        write_json(below / "config.json", exported.config)
        save_file(exported.tensors, below / SAFETENSORS, metadata={"format": "pt"})
        write_tokenizer(below, vocabulary, longest=experiment.lengths["inputs"])
        return check_in_transformers(below, exported, model, converter, whole, vocabulary, adapter=folder)
