"""A run's checkpoint as a folder that transformers loads: parameters, configuration, tokenizer, model card."""

import dataclasses
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from t5xpg.base.errors import UserError, first_line
from t5xpg.base.files import directory_atomically, write_json, write_text
from t5xpg.base.paths import shown
from t5xpg.data.batch import PREFIX_LM
from t5xpg.evaluate.trained_model import check_same_model, parameters_and_vocabulary
from t5xpg.exchange.formats.weights import SAFETENSORS
from t5xpg.exchange.huggingface.architectures import SEQ2SEQ, in_transformers
from t5xpg.exchange.huggingface.generation_config import differences, generation_config
from t5xpg.exchange.huggingface.model_card import MARK, model_card
from t5xpg.exchange.huggingface.tokenizer_files import check_tokenizer, write_tokenizer
from t5xpg.exchange.huggingface.transformers_check import NOT_CHECKED, LogitComparison, check_in_transformers
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.run.directory import RunDirectory
from t5xpg.run.results import collect, write_results
from t5xpg.run.results_page import pictures

CARD, RESULTS = "README.md", "results.json"
_SILENT_SECONDS = 60.0  # of the hub, after which it counts as gone
FOLDER = "huggingface"  # in the run directory, unless another folder is named


def open_run(loaded: LoadedConfig, path: Path) -> tuple[Experiment, RunDirectory]:
    """The experiment with its layers apart, and its run. Raises UserError for a run of another model."""
    model = loaded.experiment.model
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, scan_layers=False))
    experiment = dataclasses.replace(loaded.experiment, model=model)
    directory = RunDirectory(path)
    check_same_model(directory, experiment)
    return experiment, directory


def export(loaded: LoadedConfig, path: Path, output: Path | None = None) -> tuple[Path, LogitComparison | None]:
    """Write the last checkpoint of the run at `path` for transformers; if that is installed, compare its outputs.

    output: the folder, which appears whole or not at all; one that an earlier export wrote is replaced. Returns the
    folder, and the comparison (None without transformers). Raises UserError where transformers has no model that
    computes the same, or computes something else from the folder.
    """
    experiment, directory = open_run(loaded, path)
    target = directory.path / FOLDER if output is None else output
    require_replaceable(target, has_card(target, "config.json"))
    built = assembly.assemble(experiment)
    params, vocabulary, step = parameters_and_vocabulary(directory, experiment, built)
    converter = experiment.eval_dataset.converter
    exported = in_transformers(experiment.model, params, vocabulary, prefix_lm=converter == PREFIX_LM)
    lengths = experiment.lengths
    results = _results_at(directory, step)
    with directory_atomically(target.absolute()) as folder:
        write_json(folder / "config.json", exported.config)
        save_file(exported.tensors, folder / SAFETENSORS, metadata={"format": "pt"})
        (folder / SAFETENSORS).chmod((folder / "config.json").stat().st_mode)  # save_file lets only the owner read it
        if exported.auto_class == SEQ2SEQ:
            longest = experiment.eval_dataset.task_feature_lengths["targets"]
            start_id = exported.config["decoder_start_token_id"]
            answer = generation_config(experiment.decoding, vocabulary, longest, start_id)
            write_json(folder / "generation_config.json", answer)
        write_tokenizer(folder, vocabulary, longest=lengths["inputs" if "inputs" in lengths else "targets"])
        check_tokenizer(folder, vocabulary)
        comparison = check_in_transformers(folder, exported, experiment.model, converter, params, vocabulary)
        card = model_card(
            loaded.name,
            exported=exported,
            config=experiment.model.config,
            num_params=experiment.model.num_params,
            vocabulary=vocabulary,
            step=step,
            results=results,
            imported=directory.imported(),
            notes=differences(experiment.decoding),
            comparison=comparison,
        )
        write_text(folder / CARD, card)
        if results is not None:
            write_results(folder / RESULTS, results)
            for picture, svg in pictures(results).items():
                write_text(folder / picture, svg)
    (architecture,) = exported.config["architectures"]
    print(f"{loaded.name} after step {step:,} as {architecture}: {shown(target)}")
    print(f"compared: {comparison.text}" if comparison else NOT_CHECKED, flush=True)
    return target, comparison


def _results_at(directory: RunDirectory, step: int) -> dict[str, Any] | None:
    """The results of a run, with only those evaluations that are of the parameters after `step`; None for a run
    without measurements."""
    try:
        return collect(directory, state=(step, None))
    except UserError:
        return None


def push(folder: Path, name: str) -> None:
    """Upload an export to the Hugging Face hub as `owner/name`, in one commit; the repository is made if there is none.

    Raises UserError where the hub, or HF_ENDPOINT in its place, does not take it.
    """
    from huggingface_hub import HfApi  # late: it takes half a second
    from huggingface_hub.utils import get_session

    api = HfApi()
    print(f"pushing {shown(folder)} to {api.endpoint} as {name}", flush=True)
    get_session().timeout = _SILENT_SECONDS  # the library waits for ever
    try:
        name = api.create_repo(name, exist_ok=True).repo_id
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message="A checkpoint exported by t5xpg")
    except Exception as error:  # of the network, of the hub and of names: they share no base class
        raise UserError(
            f"{shown(folder)} is written, and {api.endpoint} did not take it as {name}: {first_line(error)} Expected "
            "is PUSH=owner/name and a token that may write there: HF_TOKEN=…, or `hf auth login`."
        ) from None
    print(f"pushed: {commit.repo_url}, commit {commit.oid}", flush=True)


def has_card(folder: Path, config: str) -> bool:
    """True if the folder has a model card that an export wrote, and the file `config` of that kind of export."""
    card = folder / CARD
    return (folder / config).is_file() and card.is_file() and MARK in card.read_text(encoding="utf-8", errors="replace")


def require_replaceable(target: Path, is_export: bool, what: str = "an export") -> None:
    """Raise UserError for a folder that holds anything else than an export: replacing the folder would delete it.

    is_export: True if the folder has the files by which an export is known. what: the export's name in the message.
    """
    is_empty = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    if not is_empty and not is_export:
        raise UserError(f"OUTPUT={target} is there, and is no folder that {what} wrote. Name another one.")
