"""A run's checkpoint as a folder for an engine: a program that runs trained models from files of its own format."""

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from t5xpg.base.environment import require_package
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import directory_atomically, write_json
from t5xpg.base.paths import shown
from t5xpg.data.spec import unpacked
from t5xpg.data.stream.client import DataService
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.exchange.huggingface.tokenizer_files import check_tokenizer, write_tokenizer
from t5xpg.exchange.t5x.networks import RECORD, record_of
from t5xpg.exchange.to_transformers import check_target, open_run
from t5xpg.experiment import assembly
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.decoding import score
from t5xpg.models.model import Model, Params

_MEASURED = 64  # examples, rounded up to whole batches, on which the loss from quantization is measured
_UNKNOWN = "what this loses was not measured: {}"


@dataclass(frozen=True)
class Engine:
    """An engine. name: that of FORMAT=, of the folder in the run directory, and of the package that writes the files.

    The package is optional; it is imported only for such an export. title: the name in messages. quantizations: the
    dtypes that parameters can be stored in, the default first. file: a file that every export has. check_model: raises
    UserError if the engine has no model that computes the same. write: puts the engine's files into a folder.
    log_likelihood: the engine's log-likelihood of targets [B, T] given inputs [B, S], int32 and padded with 0, in nats,
    summed over all tokens. runs_with: the package that log_likelihood needs.
    """

    title: str
    name: str
    quantizations: tuple[str, ...]
    file: str
    check_model: Callable[[Model], None]
    write: Callable[[Path, Experiment, Params, Vocabulary, str], None]
    log_likelihood: Callable[[Path, np.ndarray, np.ndarray], float]
    runs_with: str


def export(
    engine: Engine, loaded: LoadedConfig, path: Path, output: Path | None = None, quantization: str | None = None
) -> Path:
    """Write the last checkpoint of the run at `path` for the engine, with the tokenizer's files; returns the folder.

    If parameters are quantized, prints what that costs: the loss of the first held-out examples here and in the engine.
    output: the folder, which appears whole or not at all; one that an earlier export wrote is replaced. Raises
    UserError where the engine's package is not installed, or the engine has no model that computes the same.
    """
    require_package(f"FORMAT={engine.name}", engine.name)
    quantization = quantization or engine.quantizations[0]
    if quantization not in engine.quantizations:
        raise UserError(f"QUANTIZATION={quantization} is not known.{nearest(quantization, engine.quantizations)}")
    experiment, directory = open_run(loaded, path)
    target = (directory.path / engine.name if output is None else output).absolute()
    is_export = all((target / name).is_file() for name in (engine.file, RECORD))
    check_target(target, is_export, f"an export for {engine.title}")
    engine.check_model(experiment.model)
    params, vocabulary, step = parameters_and_vocabulary(directory, experiment, assembly.assemble(experiment))
    with directory_atomically(target) as folder:
        engine.write(folder, experiment, params, vocabulary, quantization)
        write_tokenizer(folder, vocabulary, longest=experiment.lengths["inputs"])
        check_tokenizer(folder, vocabulary)
        write_json(folder / RECORD, record_of(experiment.model.config, vocabulary))
    print(f"{loaded.name} after step {step:,} for {engine.title}, in {quantization}: {shown(target)}", flush=True)
    if quantization != engine.quantizations[0] and not directory.imported():  # an imported run has no examples
        print(f"  {_lost_quality(engine, target, experiment, params)}", flush=True)
    return target


def _lost_quality(engine: Engine, folder: Path, experiment: Experiment, params: Params) -> str:
    """A sentence with the loss of the first held-out examples, here and in the engine, in nats per target token."""
    if importlib.util.find_spec(engine.runs_with) is None:
        return _UNKNOWN.format(f"{engine.runs_with} is not installed")
    config = unpacked(experiment.eval_dataset)
    config = dataclasses.replace(config, max_batches=-(-_MEASURED // config.batch_size))
    try:
        with DataService() as service, contextlib.closing(service.open(config)) as stream:
            batches = list(stream)
    except UserError as error:
        return _UNKNOWN.format(error)
    log_likelihood = jax.jit(functools.partial(score, experiment.model))
    examples, tokens, our_loss, engine_loss = 0, 0, 0.0, 0.0
    for batch in batches:
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
        rows = (targets != 0).any(axis=1)
        examples, tokens = examples + int(rows.sum()), tokens + int((targets != 0).sum())
        our_loss -= float(log_likelihood(params, batch).sum())
        engine_loss -= engine.log_likelihood(folder, inputs[rows], targets[rows])
    return (
        f"loss of {examples} examples of {config.split}: {our_loss / tokens:.4f} nats per target token here, "
        f"{engine_loss / tokens:.4f} in {engine.title} ({engine_loss / our_loss - 1:+.2%})"
    )
