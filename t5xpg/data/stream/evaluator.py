"""The metrics of tasks, by `seqio.Evaluator`, in the data process: the examples of a task go to the model in batches;
the model's outputs come back, and SeqIO decodes, postprocesses and measures them. Imports TensorFlow."""

import itertools
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.base.files import write_atomically
from t5xpg.base.metric_values import Generic, Histogram, Image, MetricValue, is_number
from t5xpg.data.batch import Batch
from t5xpg.data.spec import DatasetConfig, unpacked
from t5xpg.data.stream.pipeline import without_autograph
from t5xpg.data.tasks.feature_converters import feature_converter
from t5xpg.data.tasks.providers import Provider, tasks_of
from t5xpg.data.tasks.table import ROWS
from t5xpg.data.vocab.seqio_vocabularies import from_seqio

Kind: TypeAlias = seqio.metrics.ModelOutputType
# The supported kinds of model outputs, by their names in the protocol.
KINDS: Mapping[str, Kind] = {
    "prediction": Kind.PREDICTION,
    "prediction_with_aux": Kind.PREDICTION_WITH_AUX,
    "score": Kind.SCORE,
}
_NAME = "t5xpg_evaluated"  # of a mixture that is registered while an evaluator is made
Outputs = Mapping[str, np.ndarray]


class TaskEvaluator:
    """The tasks of `provider` that have metrics and the split of `config`, with their examples in memory, not packed:
    at most `max_batches` batches of each. UserError for a kind of metric not in `KINDS`, a task without examples."""

    def __init__(self, provider: Provider, config: DatasetConfig) -> None:
        self.config = config
        tasks = [task for task in tasks_of(provider) if config.split in task.splits]
        self.tasks = {task.name: task for task in tasks if task.metric_fns or task.metric_objs}
        self.kinds = {name: _kinds(task) for name, task in self.tasks.items()}
        self._rows: Iterator[Any] = iter(())
        self._features = unpacked(config).batch_spec().features()
        if self.tasks:
            self._evaluator = without_autograph(self._make)
        if empty := [name for name in self.tasks if not self.examples(name)]:
            raise UserError(
                f"The split {config.split!r} of {' and '.join(empty)} gives no example: nothing can be measured."
            )

    def _make(self) -> seqio.Evaluator:
        config = self.config
        # seqio.Evaluator takes only a registered name, and these tasks may have the experiment's objective
        mixture = seqio.Mixture(_NAME, [(task, 1.0) for task in self.tasks.values()])
        seqio.MixtureRegistry.remove(_NAME)
        seqio.MixtureRegistry.add_provider(_NAME, mixture)
        try:
            return seqio.Evaluator(
                mixture_or_task_name=_NAME,
                feature_converter=feature_converter(unpacked(config)),
                eval_split=config.split,
                use_cached=config.use_cached,
                seed=config.seed,
                sequence_length=dict(config.task_feature_lengths),
                num_examples=None if config.max_batches is None else config.max_batches * config.batch_size,
                shuffle=config.shuffle,
                logger_cls=(_Inferences,),
                log_dir="unused",
                async_compute_metrics=False,
            )
        finally:
            seqio.MixtureRegistry.remove(_NAME)

    def examples(self, task: str) -> int:
        """The number of examples of a task that are measured."""
        return int(self._evaluator.cached_task_datasets[task].cardinality())

    def begin(self, task: str) -> None:
        """Set `next` to the first examples of a task."""
        self._rows = self._evaluator.cached_model_datasets[task].as_numpy_iterator()

    def next(self) -> Batch | None:
        """The next batch of the task; the last one may have fewer rows. None after the last one."""
        rows = [row for _, row in itertools.islice(self._rows, self.config.batch_size)]
        return {name: np.stack([row[name] for row in rows]) for name in self._features} if rows else None

    def measure(
        self, outputs: Mapping[str, Outputs], step: int, inferences: str | None = None
    ) -> dict[str, dict[str, MetricValue]]:
        """{task: {metric: value}} from the model's outputs for its examples: see `RemoteEvaluator.measure`."""
        if not self.tasks:
            return {}
        datasets = {id(dataset): task for task, dataset in self._evaluator.cached_model_datasets.items()}

        def model(kind: str) -> Callable[[tf.data.Dataset], Any]:
            def outputs_of(dataset: tf.data.Dataset) -> Any:
                arrays = outputs[datasets[id(dataset)]]
                pairs = list(enumerate(arrays["score" if kind == "score" else "prediction"].tolist()))
                # "scores": their name in T5X
                aux = {"scores": arrays["prediction_scores"].tolist()} if kind == "prediction_with_aux" else None
                return pairs if aux is None else (pairs, aux)

            return outputs_of

        try:
            metrics, _ = self._evaluator.evaluate(
                compute_metrics=True, step=step, model_fns={value: model(name) for name, value in KINDS.items()}
            )
        except ValueError as error:
            if (cause := error.__cause__) is None:
                raise
            where = traceback.extract_tb(cause.__traceback__)[-1]
            raise UserError(f"{error} ({type(cause).__name__} in {where.filename}, line {where.lineno})") from error
        if inferences is not None:
            (inferences_logger,) = self._evaluator.loggers
            for name, task in self.tasks.items():
                path = Path(inferences, f"{name.replace(':', '_')}.jsonl")
                self._write_inferences(path, task, *inferences_logger.of_task[name])
        return {
            task: {name: _metric_value(f"The metric {name} of {task}", value) for name, value in values.items()}
            for task, values in metrics.result().items()
        }

    def _write_inferences(self, path: Path, task: seqio.Task, dataset: Any, targets: Any, inferences: Any) -> None:
        """A line of JSON for each example. "id": the number of its row in the source, from 0 on, of a task of the table
        that is read from its source. "cut": the features that were longer than the model reads."""
        columns = {"target": targets, "prediction": inferences.get("prediction"), "score": inferences.get("score")}
        columns = {name: values for name, values in columns.items() if values is not None}
        is_in_order = task.name in ROWS and not self.config.use_cached
        with write_atomically(path) as file:
            for number, example in enumerate(dataset.as_numpy_iterator()):
                line: dict[str, Any] = {"id": number} if is_in_order else {}
                line |= {"inputs": _text_of(task, example)} if "inputs" in task.output_features else {}
                line |= {name: values[number] for name, values in columns.items()}
                if cut := self._cut_features(task, example):
                    line["cut"] = cut
                file.write((json.dumps(_to_json(line), ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))

    def _cut_features(self, task: seqio.Task, example: Mapping[str, Any]) -> list[str]:
        """The features of an example whose text has more tokens than the model reads of them."""
        lengths = self.config.task_feature_lengths
        return [
            name
            for name, feature in task.output_features.items()
            if isinstance(text := example.get(f"{name}_pretokenized"), bytes)
            and len(example[name]) >= lengths[name]
            and len(feature.vocabulary.encode(text.decode("utf-8", "replace"))) + feature.add_eos > lengths[name]
        ]

    def trivial(self) -> dict[str, dict[str, dict[str, float]]]:
        """The metrics of answers that need no model: see `RemoteEvaluator.trivial`."""
        metrics = {}
        for name, task in self.tasks.items():
            try:
                metrics[name] = self._trivial(task)
            except Exception:  # of any type: functions of users' tasks may take the answers of models alone
                if name in ROWS:
                    raise
        return {name: ways for name, ways in metrics.items() if ways}

    def _trivial(self, task: seqio.Task) -> dict[str, dict[str, float]]:
        if not task.predict_metric_fns:
            return {}
        examples = list(self._evaluator.cached_task_datasets[task.name].as_numpy_iterator())
        texts = [_text_of(task, example, "targets") for example in examples]
        row = ROWS.get(task.name)

        def answers(texts: Sequence[str], is_target: bool = False) -> list[Any]:
            pairs = zip(texts, examples, strict=True)
            return [task.postprocess_fn(text, example=example, is_target=is_target) for text, example in pairs]

        targets, correct = answers(texts, is_target=True), answers(texts)
        ((most_frequent, _),) = Counter(map(repr, correct)).most_common(1)  # an answer may be of any type
        predictions_by_way = {"majority": [correct[list(map(repr, correct)).index(most_frequent)]] * len(correct)}
        if "inputs" in task.output_features:
            inputs = [_text_of(task, example) for example in examples]
            copies = answers([row.copied(text) if row else text for text in inputs])
            predictions_by_way = {"copy": copies, **predictions_by_way}
        return {
            way: {
                name: number
                for metric in task.predict_metric_fns
                for name, value in metric(targets, predictions).items()
                if is_number(number := _metric_value(f"The metric {name} of {task.name}", value))
            }
            for way, predictions in predictions_by_way.items()
        }


def _kinds(task: seqio.Task) -> list[str]:
    kinds = {metric.model_output_type for metric in task.metric_objs}
    if others := sorted(Kind(kind).name for kind in kinds - set(KINDS.values())):
        raise UserError(
            f"A metric of {task.name} is of {' and '.join(others)}, which is not computed here: there are metrics of "
            f"{', '.join(kind.name for kind in KINDS.values())}."
        )
    return [name for name, kind in KINDS.items() if kind in kinds]


class _Inferences(seqio.loggers.Logger):
    """Keeps the dataset, the targets and the inferences of each task's last evaluation."""

    def __init__(self, output_dir: str) -> None:
        super().__init__(output_dir)
        self.of_task: dict[str, tuple[Any, Any, Any]] = {}

    def __call__(self, task_name: str, step: Any, metrics: Any, dataset: Any, inferences: Any, targets: Any) -> None:
        self.of_task[task_name] = (dataset, targets, inferences)


def _text_of(task: seqio.Task, example: Mapping[str, Any], feature: str = "inputs") -> str:
    """A feature as text: the text before tokenisation, if the example has it; else decoded, with named sentinels."""
    if isinstance(text := example.get(f"{feature}_pretokenized"), bytes):
        return text.decode("utf-8", "replace")
    vocabulary, ids = task.output_features[feature].vocabulary, [int(token) for token in example[feature]]
    try:
        return from_seqio(vocabulary).decode(ids)
    except UserError:  # a kind of vocabulary that is not known here
        return str(vocabulary.decode(ids))


def _to_json(value: Any) -> Any:
    """A postprocessor's output as JSON: non-finite floats become None, other values that JSON lacks their text."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _to_json(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_to_json(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _metric_value(what: str, value: Any) -> MetricValue:
    """A metric's value without SeqIO's types. UserError for a value that records cannot hold. what: the metric."""
    if isinstance(value, seqio.metrics.Scalar):
        value = value.value
    elif isinstance(value, seqio.metrics.Text):
        value = value.textdata
    elif isinstance(value, seqio.metrics.Histogram):
        return Histogram(np.asarray(value.values, np.float64), value.bins)
    elif isinstance(value, seqio.metrics.Image):
        return _image(what, value)
    elif isinstance(value, seqio.metrics.Generic):
        tensor = np.asarray(value.tensor)
        summary = tf.compat.v1.Summary.Value(tensor=tf.make_tensor_proto(tensor), metadata=value.metadata)
        return Generic(tensor, summary.SerializeToString())
    elif isinstance(value, seqio.metrics.MetricValue):
        raise UserError(
            f"{what} is of the kind {type(value).__name__}, which the records of a run do not hold: they hold Scalar, "
            "Text, Histogram, Image and Generic. Leave it out of the task's metric_fns."
        )
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None or isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise UserError(
            f"{what} is a {type(value).__name__}: expected a number, a text or a seqio.metrics.MetricValue."
        )
    if array.ndim:
        return Generic(array)
    return float(array) if array.dtype.kind == "f" else int(array)


def _image(what: str, value: Any) -> Image:
    pictures = np.asarray(value.image)
    if pictures.ndim != 4 or pictures.shape[3] not in (1, 3, 4) or pictures.dtype.kind not in "uif":
        raise UserError(
            f"{what} is an image of shape {list(pictures.shape)} and type {pictures.dtype}: expected [number, height, "
            "width, channels] with 1, 3 or 4 channels, as tf.summary.image takes it."
        )
    maximum, dtype = (1.0, np.float32) if pictures.dtype.kind == "f" else (255, np.uint8)
    return Image(np.clip(pictures, 0, maximum).astype(dtype), value.max_outputs)
