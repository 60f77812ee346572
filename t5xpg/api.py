"""The Python interface, `t5xpg.load` and `t5xpg.Experiment`: use a trained model, or train one, in one line each."""

import dataclasses
import functools
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError, nearest
from t5xpg.data.batch import with_targets
from t5xpg.data.spec import unpacked
from t5xpg.evaluate import evaluation
from t5xpg.evaluate.predictor import Answer, Predictor, pad_rows
from t5xpg.evaluate.trained_model import Step, load_run, parameters_and_vocabulary
from t5xpg.exchange import from_t5x, import_folders, importing
from t5xpg.exchange.formats import t5x_files
from t5xpg.experiment import assembly, config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.models import decoding
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.run.directory import RunDirectory, training_hint
from t5xpg.run.records import read_jsonl
from t5xpg.train.train import train

if TYPE_CHECKING:
    import pandas


class Model:
    """A trained model: parameters and vocabulary. Texts write sentinels as `<extra_id_0>`, whatever their ids are.

    step: the update after which the parameters were saved (of a mean: the last one); 0 for an imported checkpoint.
    """

    def __init__(self, loaded: LoadedConfig, run: Path, step: Step = None) -> None:
        self.experiment, self.run = loaded.experiment, run
        built = assembly.assemble(self.experiment)
        self.params, self.vocabulary, self.step = parameters_and_vocabulary(
            RunDirectory(run), self.experiment, built, step
        )
        self._predictors: dict[DecodingConfig, Predictor] = {}
        # compiled once for each shape
        model = self.experiment.model
        self._score = jax.jit(functools.partial(decoding.score, model))
        self._encode = jax.jit(model.encode) if isinstance(model, EncoderDecoderModel) else None

    def generate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """The best answer to each text.

        options: num_beams (more than 1 for beam search; without it, greedy decoding) and fields of `DecodingConfig`,
        such as max_decode_length (in tokens; also max_new_tokens; default: the maximum target length in training),
        alpha, allowed (a list of the answers that may be given, or a file of them), pattern (a regular expression
        that whole answers match), or method="sample" with temperature, topk, topp and seed. Raises UserError for
        invalid values, and for a text that is longer than the inputs in training.
        """
        return [answer.texts[0] for answer in self.answers(texts, **options)]

    def answers(self, texts: Sequence[str], **options: Any) -> list[Answer]:
        """All answers to each text that `num_decodes` asks for, the best first, with their scores; options: as of
        `generate`."""
        predictor = self._predictor(_decoding(**options))
        size, answers = predictor.batch_size, list[Answer]()
        _check_texts(predictor, texts)
        for start in range(0, len(texts), size):
            part = texts[start : start + size]
            answers += predictor.answers(predictor.encode(part, rows=size), first_row=start)[: len(part)]
        return answers

    def loss(self, inputs: Sequence[str], targets: Sequence[str]) -> np.ndarray:
        """The loss of each target given its input: float32 [B], in nats per token. The end token counts as a token.

        Raises UserError for a model that is not an encoder-decoder, and for lists of different lengths.
        """
        if self._encode is None:
            raise UserError(f"loss is of models with an encoder and a decoder, which {self.run.name} is not.")
        if len(inputs) != len(targets):
            raise UserError(f"loss: {len(inputs)} inputs and {len(targets)} targets; expected a target for each input.")
        if not inputs:
            return np.zeros(0, np.float32)
        tokens = self._tokens(targets)
        spec = unpacked(self.experiment.eval_dataset).batch_spec()
        batch = with_targets({"encoder_input_tokens": self._inputs(inputs)}, tokens, spec)
        scores = self._score(self.params, batch)
        return np.asarray(-scores / (tokens != self.vocabulary.pad_id).sum(axis=1), np.float32)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The encoder's output for each text: float32 [S, D], one row for each token and for the end token.

        Raises UserError for a model that is not an encoder-decoder.
        """
        if self._encode is None:
            raise UserError(f"encode is of models with an encoder and a decoder, which {self.run.name} is not.")
        if not texts:
            return []
        tokens = self._inputs(texts)
        encoded = np.asarray(self._encode(self.params, tokens), np.float32)
        return [
            row[:length] for row, length in zip(encoded, (tokens != self.vocabulary.pad_id).sum(axis=1), strict=True)
        ]

    def _predictor(self, decoding_config: DecodingConfig) -> Predictor:
        if decoding_config not in self._predictors:
            experiment = dataclasses.replace(self.experiment, decoding=decoding_config)
            self._predictors[decoding_config] = Predictor(experiment, self.params, self.vocabulary)
        return self._predictors[decoding_config]

    def _inputs(self, texts: Sequence[str]) -> np.ndarray:
        """As `_tokens`. Raises UserError for a text that is longer than the inputs in training."""
        _check_texts(self._predictor(DecodingConfig()), texts)
        return self._tokens(texts)

    def _tokens(self, texts: Sequence[str]) -> np.ndarray:
        """Each text with its end token, as `pad_rows` rows."""
        _require_list(texts)
        ids = [[*self.vocabulary.encode(text), self.vocabulary.eos_id] for text in texts]
        return pad_rows(ids, self.vocabulary.pad_id)


def _decoding(num_beams: int = 1, **options: Any) -> DecodingConfig:
    """A decoding by names of `DecodingConfig` and two of transformers. Raises UserError for others."""
    if "max_new_tokens" in options:
        options["max_decode_length"] = options.pop("max_new_tokens")
    search = {"method": "greedy"} if num_beams == 1 else {"method": "beam", "num_decodes": num_beams}
    if num_beams == 1 and options.get("num_decodes", 1) != 1:
        search = {"method": "beam"}
    if isinstance(options.get("allowed"), list):
        options["allowed"] = tuple(options["allowed"])
    known = [field.name for field in dataclasses.fields(DecodingConfig)]
    for name in options:
        if name not in known:
            raise UserError(f"{name} is no option of decoding.{nearest(name, [*known, 'num_beams', 'max_new_tokens'])}")
    return DecodingConfig(**{**search, **options})


def _check_texts(predictor: Predictor, texts: Sequence[str]) -> None:
    """Raise UserError for a single text in place of a list, and for texts that the model cannot read."""
    _require_list(texts)
    for number, text in enumerate(texts):
        predictor.check(text, f"Text {number}")


def _require_list(texts: Sequence[str]) -> None:
    """Raise UserError for a single text, of which each character would count as a text."""
    if isinstance(texts, str):
        raise UserError(f"Expected a list of texts: [{texts!r}].")


@dataclass(frozen=True)
class Run:
    """A run directory. experiment: what it was trained from, if known."""

    path: Path
    experiment: "Experiment | None" = None

    @property
    def metrics(self) -> "pandas.DataFrame":
        """One row for each record of metrics.jsonl, with NaN where the record lacks a value.

        Columns: "step", "split" ("train", "validation", "infer_eval", or "skipped" for an update that was not finite),
        "loss" in nats per target token, "nats_per_byte", "accuracy", and whatever else was recorded ("metrics.bleu").
        """
        import pandas

        return pandas.json_normalize(list(read_jsonl(RunDirectory(self.path).metrics_jsonl)))

    def evaluate(
        self, *, split: str | None = None, task: str | None = None, step: Step = None, **decoding_options: Any
    ) -> dict[str, Any]:
        """Evaluate a checkpoint, like `make eval`; returns the record, which lies in the run's evaluations/.

        split, task: others than those of the run's validation. step: see `model`. decoding_options: fields of
        `DecodingConfig`, as in `Model.generate`; without them, those of the run.
        """
        loaded = self._load()
        if decoding_options:
            own = dataclasses.replace(loaded.experiment, decoding=_decoding(**decoding_options))
            loaded = dataclasses.replace(loaded, experiment=own)
        record = evaluation.evaluate(loaded, self.path, split=split, task=task, step=step)
        stores.push(self.path)
        return record

    def model(self, step: Step = None) -> Model:
        """The model of a checkpoint. step: its number, "best", "mean:N" (mean of the last N), or None for the last."""
        return Model(self._load(), self.path, step)

    def _load(self) -> LoadedConfig:
        own = self.experiment
        return load_run(self.path) if own is None else load_run(self.path, own.overrides, own.gin_files, own.name)


@dataclass(frozen=True)
class Experiment:
    """An experiment: a folder of experiments/, an imported run, or a gin file. Raises UserError if there is none.

    overrides: of macros or bindings ("NAME=value"). gin_files: files that are read over its own.
    """

    name: str
    overrides: tuple[str, ...] = ()
    gin_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        config.find_experiment(self.name)

    def override(self, *gin_files: str, **macros: Any) -> "Experiment":
        """A copy with these gin files and these values of gin macros added: `override(TRAIN_STEPS=200)`."""
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in macros.items()}
        bindings = tuple(f"{name}={value!r}" for name, value in plain.items())
        return dataclasses.replace(
            self, overrides=(*self.overrides, *bindings), gin_files=(*self.gin_files, *gin_files)
        )

    def load(self) -> LoadedConfig:
        """The values of the experiment. Raises UserError, with one message that names all mistakes."""
        return config.load(self.name, self.overrides, self.gin_files)

    def train(self, run: str | None = None) -> Run:
        """Train the experiment, or continue its run, as `make train` does. run: the run directory, or a name in runs/
        (default: the experiment's model_dir, else its name). Raises UserError for mistakes, and KeyboardInterrupt if a
        signal stopped the training: the step is then saved, and the same call continues."""
        loaded = self.load()
        path = paths.run_directory(run or loaded.experiment.model_dir or loaded.name)
        options = [*(f"--gin_file={file}" for file in self.gin_files), *(f"--gin.{one}" for one in self.overrides)]
        command = shlex.join(["t5xpg", "train", self.name, *options, f"--run={paths.shown(path)}"])
        if train(loaded, path, command=command):
            raise KeyboardInterrupt
        return Run(path, self)


def load(name: str, *, step: Step = None, experiment: str | None = None) -> Model:
    """A trained model: from a run (its directory, or its name in runs/), from a folder that transformers, T5X or
    Mesh-TensorFlow wrote, or from the Hugging Face hub ("google/byt5-small").

    step: the step of the run's checkpoint, "best", "mean:N" (the mean of the last N), or None for the last one. A model
    that is not a run is imported into runs/ the first time. experiment: the gin file of a run whose model or tasks are
    code of your own. Raises UserError if there is no such model, and if it would run code that no gin file of this
    checkout, nor `experiment`, names.
    """
    path = paths.run_directory(name)
    stores.pull(path)
    if not RunDirectory(path).exists():
        path = _imported(name)
    return Model(load_run(path, experiment=experiment), path, step)


def _imported(name: str) -> Path:
    """The run that holds an imported checkpoint of another program; the checkpoint is imported the first time."""
    runs = paths.runs_directory()
    stores.pull_all(runs, RunDirectory.is_record)
    references = {name, str(Path(os.path.expanduser(name)).resolve())}
    for path in runs.glob("*"):
        run = RunDirectory(path)
        try:
            record = run.imported() if run.exists() else None
        except UserError:  # of another run, whose record cannot be read
            continue
        if record:
            source = record["source"]
            names = {source} if os.path.isabs(source) else {source, source.partition("@")[0]}  # on the hub: its commit
            if record["format"] != "huggingface":  # also the folders whose last checkpoint it is
                folders = [folder for folder in from_t5x.folders_of(Path(source))[1:] if str(folder) in references]
                names |= {str(folder) for folder in folders if _last_checkpoint(folder) == source}
            if references & names:
                return path
    if "/" not in name and not Path(name).exists():
        run_names = [path.name for path in runs.glob("*") if RunDirectory(path).exists()]
        raise UserError(
            f"There is no run {name!r} in {paths.shown(runs)}.{training_hint(name)}{nearest(name, run_names)}"
        )
    if "@" in name and not name.startswith((".", "/", "~")) and not Path(name).exists():
        source = import_folders.find(name).source
        if source != name:  # of a branch or a tag, and runs name the commit
            return _imported(source)
    return importing.import_checkpoint(name, runs)


def _last_checkpoint(folder: Path) -> str | None:
    """The path of the checkpoint of T5X or Mesh-TensorFlow that a folder stands for; None where there is none."""
    try:
        return str(t5x_files.open_checkpoint(folder).path)
    except UserError:
        return None
