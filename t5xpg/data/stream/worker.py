"""The calls of the data process that streams: `python -m t5xpg.data.stream.worker <file descriptor>`."""

import itertools
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.data import data_process, late_imports
from t5xpg.data.objectives.span_corruption import span_numbers
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import length_fit
from t5xpg.data.stream.client import TaskDescription
from t5xpg.data.stream.remote_evaluator import EvaluatedTask


class Calls:
    """The requests, one method each, by name in `calls`. opened: the number of a stream or evaluator."""

    def __init__(self) -> None:
        late_imports.import_libraries()
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        from t5xpg.data.stream import pipeline  # noqa: F401
        from t5xpg.data.tasks import registered  # noqa: F401

        self.calls: data_process.Calls = {
            "describe": self.describe,
            "fits": self.fits,
            "open": self.open,
            "evaluator": self.evaluator,
            "call_opened": self.call_opened,
            "close": self.close,
        }
        self._opened: dict[int, data_process.Calls] = {}  # of streams and evaluators
        self._numbers = itertools.count()

    def describe(self, config: dict[str, Any]) -> TaskDescription:
        """Facts about a task or mixture, known before it is read."""
        from t5xpg.data.tasks import providers
        from t5xpg.data.vocab.seqio_vocabularies import from_seqio

        dataset, provider = _find_provider(config)
        first, *others = [
            (f"{name} of {task.name}", task.output_features[name].vocabulary)
            for task in providers.tasks_of(provider)
            for name in dataset.token_features
        ]
        if other := next((name for name, vocabulary in others if vocabulary != first[1]), None):
            raise UserError(f"The {first[0]} have another vocabulary than the {other}: T5 shares one.")
        tasks = [task for task in providers.tasks_of(provider) if dataset.split in task.splits]
        return TaskDescription(
            name=provider.name,
            tasks=tuple(task.name for task in tasks),
            splits=tuple(sorted(provider.splits)),
            cached=all(providers.reads_cache(task, dataset) for task in tasks),
            examples={split: _examples(provider, split) for split in sorted(provider.splits)},
            vocabulary=from_seqio(first[1]),
            objective=span_numbers([providers.objective_of(task) for task in tasks], dataset.task_feature_lengths),
            has_metrics=any(task.metric_fns or task.metric_objs for task in tasks),
        )

    def fits(self, config: dict[str, Any]) -> list[length_fit.LengthFit]:
        """The fit of each supervised task's first examples to its lengths and vocabulary."""
        dataset, provider = _find_provider(config)
        return length_fit.measure(provider, dataset)

    def open(self, config: dict[str, Any], shards: list[int]) -> dict[str, Any]:
        """Build a stream that stands before its first batch."""
        from t5xpg.data.stream.pipeline import ShardedBatches

        dataset, provider = _find_provider(config)
        stream = ShardedBatches(provider, dataset, shards)
        methods: data_process.Calls = {
            "next": stream.next,
            "save": stream.save,
            "restore": stream.restore,
            "rewind": stream.rewind,
        }
        vocab_size = _vocabulary_size(provider, dataset)
        return {"opened": self._keep(methods), "vocab_size": vocab_size, "identity": stream.identity}

    def evaluator(self, config: dict[str, Any]) -> dict[str, Any]:
        """Read the examples of the tasks that have metrics."""
        from t5xpg.data.stream.evaluator import TaskEvaluator

        dataset, provider = _find_provider(config)
        one = TaskEvaluator(provider, dataset)
        tasks = tuple(EvaluatedTask(name, one.examples(name), tuple(one.kinds[name])) for name in one.tasks)
        methods: data_process.Calls = {
            "begin": one.begin,
            "next": one.next,
            "measure": one.measure,
            "trivial": one.trivial,
        }
        return {"opened": self._keep(methods), "tasks": tasks, "vocab_size": _vocabulary_size(provider, dataset)}

    def _keep(self, methods: data_process.Calls) -> int:
        number = next(self._numbers)
        self._opened[number] = methods
        return number

    def call_opened(self, opened: int, method: str, **values: Any) -> Any:
        """The result of a method of a stream or of an evaluator."""
        return self._opened[opened][method](**values)

    def close(self, opened: int) -> None:
        """Forget a stream, or the examples of an evaluator."""
        self._opened.pop(opened, None)


def _find_provider(config: dict[str, Any]) -> tuple[DatasetConfig, Any]:
    from t5xpg.base.paths import data_directory
    from t5xpg.data.tasks import providers
    from t5xpg.data.tasks.table import register_tasks

    providers.import_modules(config["module_import"])  # feature converters may come with them
    dataset = DatasetConfig.from_json(config)
    if not providers.is_known(dataset.mixture_or_task_name):
        register_tasks(data_directory())  # it may have been exported since this process started
    provider = providers.find_provider(dataset)
    for task in providers.tasks_of(provider):
        if _has_empty_cache(task, dataset):
            raise UserError(
                f"The cache of {task.name} has no examples of the split {dataset.split!r}: there is no text, or none "
                "that its preprocessors make examples of. Name another split, or give it other text."
            )
    providers.check(provider, dataset)
    return dataset, provider


def _has_empty_cache(task: Any, dataset: DatasetConfig) -> bool:
    """True for a task that is read from a cache whose split has no examples: SeqIO does not say what form they have."""
    from t5xpg.data.tasks.providers import reads_cache

    try:
        return reads_cache(task, dataset) and task.get_cached_stats(dataset.split)["examples"] == 0
    except Exception:  # there is no such cache or split, or it is torn: `check` says which
        return False


def _vocabulary_size(provider: Any, dataset: DatasetConfig) -> int:
    return max(int(provider.output_features[name].vocabulary.vocab_size) for name in dataset.token_features)


def _examples(provider: Any, split: str) -> int | None:
    """The number of examples in the sources; None if one is unknown. A source that tasks share counts once."""
    from t5xpg.data.tasks import sources
    from t5xpg.data.tasks.providers import tasks_of

    tasks = {id(task.source): task for task in tasks_of(provider) if split in task.splits}
    return sources.number_of_examples((task, split) for task in tasks.values())


if __name__ == "__main__":
    data_process.serve(lambda report: Calls().calls)
