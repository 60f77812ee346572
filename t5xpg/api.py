"""t5xpg in Python, as `t5xpg.load` and `t5xpg.experiment`: use what was trained, and train, in a line each."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from t5xpg.base import paths, stores
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import read_json
from t5xpg.data.batch import with_targets
from t5xpg.data.spec import unpacked
from t5xpg.evaluate import evaluation
from t5xpg.evaluate.predictor import LENGTH_MULTIPLE, Predictor
from t5xpg.evaluate.trained_model import Step, parameters_and_vocabulary
from t5xpg.exchange import importing
from t5xpg.experiment import assembly, config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.models import decoding
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.run.directory import RunDirectory
from t5xpg.run.records import read_jsonl
from t5xpg.train import training

if TYPE_CHECKING:
    import pandas

_CONFIG = "operative.gin"  # config.gin also has what its fragments set and nothing read


class Model:
    """Trained parameters with their vocabulary. Texts name sentinels `<extra_id_0>`, whatever their ids are.

    step: the update after which the parameters are; 0 for an imported checkpoint.
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

    def generate(self, texts: Sequence[str], *, num_beams: int = 1, **options: Any) -> list[str]:
        """The best answer to each text.

        num_beams: 1 for the most probable token each time, more for beam search. options: other fields of
        `DecodingConfig`, such as max_decode_length (tokens; default: the longest targets in training), alpha, or
        method="sample" with temperature, topk, topp and seed. Raises UserError for values that cannot be.
        """
        method = "beam" if num_beams > 1 else "greedy"
        beams = {"num_decodes": num_beams} if num_beams > 1 else {}
        predictor = self._predictor(DecodingConfig(**{"method": method, **beams, **options}))
        size, found = predictor.batch_size, []
        for start in range(0, len(texts), size):
            part = texts[start : start + size]
            answers = predictor.answers(predictor.encode(part, rows=size), first_row=start)
            found += [answer.texts[0] for answer in answers[: len(part)]]
        return found

    def loss(self, inputs: Sequence[str], targets: Sequence[str]) -> np.ndarray:
        """float32 [B]: the loss of each target given its input, in nats per token, the end token among them.

        Raises UserError for a model that is no encoder-decoder, and for lists of different lengths.
        """
        if self._encode is None:
            raise UserError(f"loss is of models with an encoder and a decoder, which {self.run.name} is not.")
        if len(inputs) != len(targets):
            raise UserError(f"loss: {len(inputs)} inputs and {len(targets)} targets; expected a target for each input.")
        tokens = self._tokens(targets)
        spec = unpacked(self.experiment.eval_dataset).batch_spec()
        batch = with_targets({"encoder_input_tokens": self._tokens(inputs)}, tokens, spec)
        scores = self._score(self.params, batch)
        return np.asarray(-scores / (tokens != self.vocabulary.pad_id).sum(axis=1), np.float32)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """What the encoder makes of each text: float32 [S, D], a row for each of its tokens and its end.

        Raises UserError for a model that is no encoder-decoder.
        """
        if self._encode is None:
            raise UserError(f"encode is of models with an encoder and a decoder, which {self.run.name} is not.")
        tokens = self._tokens(texts)
        encoded = np.asarray(self._encode(self.params, tokens), np.float32)
        return [
            row[:length] for row, length in zip(encoded, (tokens != self.vocabulary.pad_id).sum(axis=1), strict=True)
        ]

    def _predictor(self, chosen: DecodingConfig) -> Predictor:
        if chosen not in self._predictors:
            experiment = dataclasses.replace(self.experiment, decoding=chosen)
            self._predictors[chosen] = Predictor(experiment, self.params, self.vocabulary)
        return self._predictors[chosen]

    def _tokens(self, texts: Sequence[str]) -> np.ndarray:
        """int32 [B, S], each text with its end, padded to a multiple of `LENGTH_MULTIPLE`."""
        ids = [[*self.vocabulary.encode(text), self.vocabulary.eos_id] for text in texts]
        S = -(-max(map(len, ids), default=1) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        tokens = np.full((len(ids), S), self.vocabulary.pad_id, np.int32)
        for row, one in zip(tokens, ids, strict=True):
            row[: len(one)] = one
        return tokens


@dataclass(frozen=True)
class Run:
    """A run directory."""

    path: Path

    @property
    def metrics(self) -> "pandas.DataFrame":
        """A row for each record of metrics.jsonl: "step", "split" ("train", "validation", "infer_eval"), "loss" in nats
        per target token, "nats_per_byte", "accuracy", and what else was recorded; NaN where a record has none."""
        import pandas

        return pandas.json_normalize(list(read_jsonl(RunDirectory(self.path).metrics_jsonl)))

    def evaluate(self) -> dict[str, Any]:
        """What `make eval` measures of the last checkpoint on the validation split, as evaluation.json has it."""
        evaluation.evaluate(_loaded(self.path), self.path)
        stores.push(self.path)
        found: dict[str, Any] = read_json(RunDirectory(self.path).evaluation_json)
        return found

    def model(self, step: Step = None) -> Model:
        """The model after an update: a number, "best", or None for the last checkpoint."""
        return Model(_loaded(self.path), self.path, step)


@dataclass(frozen=True)
class Experiment:
    """An experiment with overrides: values of macros or bindings, by their names in gin, and further gin files."""

    name: str
    overrides: tuple[str, ...] = ()
    gin_files: tuple[str, ...] = ()

    def override(self, *gin_files: str, **macros: Any) -> "Experiment":
        """The same with these gin files over it, and these macros: `override(TRAIN_STEPS=200)`."""
        bindings = tuple(f"{name}={value!r}" for name, value in macros.items())
        return dataclasses.replace(
            self, overrides=(*self.overrides, *bindings), gin_files=(*self.gin_files, *gin_files)
        )

    def load(self) -> LoadedConfig:
        """The values it has. Raises UserError for mistakes, all of them in one message."""
        return config.load(self.name, self.overrides, self.gin_files)

    def train(self, run: str | None = None) -> Run:
        """Train it, or go on with what is there, as `make train` does. run: its directory, or a name in runs/ (default:
        the experiment's). Raises UserError for mistakes, and KeyboardInterrupt where a signal stopped it: the step is
        saved then, and the same call goes on."""
        loaded = self.load()
        path = paths.run_directory(run or loaded.experiment.model_dir or loaded.name)
        if training.train(loaded, path):
            raise KeyboardInterrupt
        return Run(path)


def experiment(name: str) -> Experiment:
    """A folder of experiments/ by its name, or a gin file. Raises UserError where there is none."""
    config.find_experiment(name)
    return Experiment(name)


def load(name: str, *, step: Step = None) -> Model:
    """A trained model: of a run (its directory, or its name in runs/), of a folder that transformers, T5X or
    Mesh-TensorFlow wrote, or of the Hugging Face hub ("google/byt5-small").

    step: of a run's checkpoint, "best", or None for the last one. What is not a run becomes one, once, in runs/. Raises
    UserError where there is no such model.
    """
    path = paths.run_directory(name)
    stores.pull(path)
    if not RunDirectory(path).exists():
        path = _imported(name)
    return Model(_loaded(path), path, step)


def _imported(name: str) -> Path:
    """The run of a checkpoint of another program, which is imported the first time."""
    runs = paths.runs_directory()
    stores.pull_all(runs, RunDirectory.is_record)
    wanted = {name, str(Path(name).expanduser().resolve())}
    for path in runs.glob("*"):
        run = RunDirectory(path)
        if run.exists() and (found := run.imported()):
            names = {found["source"], found["source"].partition("@")[0]}  # of the hub also without its commit
            if found["format"] == "t5x":
                names.add(str(Path(found["source"]).parent))  # the folder that its checkpoint is in
            if wanted & names:
                return path
    if "/" not in name and not Path(name).exists():
        known = [path.name for path in runs.glob("*") if RunDirectory(path).exists()]
        raise UserError(
            f"There is no run {name!r} in {paths.shown(runs)}: make train EXP={name}.{nearest(name, known)}"
        )
    return importing.import_checkpoint(name, runs)


def _loaded(path: Path) -> LoadedConfig:
    """The experiment that a run is of, with the values that it had."""
    own = path / f"{path.name}.gin"  # of an imported one
    loaded = config.load(str(own if own.exists() else path / _CONFIG))
    return dataclasses.replace(loaded, name=RunDirectory(path).read()["experiment"])
