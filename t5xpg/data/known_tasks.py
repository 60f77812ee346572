"""What is known of the table's tasks without TensorFlow: from the table and the record of the export."""

from __future__ import annotations

from pathlib import Path

from t5xpg.data import task_names
from t5xpg.data.client import SpanLengths, TaskDescription
from t5xpg.data.manifest import find_manifests, read_manifest
from t5xpg.data.span_lengths import problems, span_lengths
from t5xpg.data.spec import DatasetConfig


def describe(config: DatasetConfig, data_dir: Path) -> TaskDescription | None:
    """What `DataService.describe` says of a task of the table that can be read; None where that has to be asked.

    It has to be asked of tasks that users registered, and where something is in the way. That the text and the cache
    are there and whole is the caller's to know.
    """
    name = config.mixture_or_task_name
    folders = find_manifests(data_dir)
    dataset = task_names.dataset_of(name, folders)
    if dataset is None or config.module_import or set(config.task_feature_lengths) != {"inputs", "targets"}:
        return None
    counts = {split: record.documents for split, record in read_manifest(folders[dataset]).splits.items()}
    entry = task_names.entry_of(name, dataset)
    objective = config.objective or entry.span_corruption
    lengths = config.task_feature_lengths
    if config.split not in counts or problems(name, lengths, objective, entry.vocabulary.num_sentinels):
        return None
    spans = span_lengths(lengths["inputs"], objective)
    return TaskDescription(
        name=name,
        tasks=(name,),
        splits=tuple(sorted(counts)),
        cached=config.use_cached,
        examples={split: counts[split] for split in sorted(counts)},
        vocabulary=entry.vocabulary,
        objective=SpanLengths(
            noise_density=objective.noise_density,
            mean_noise_span_length=objective.mean_noise_span_length,
            text_tokens=spans.text,
            target_tokens=spans.targets,
            spans=spans.spans,
        ),
        has_metrics=False,
    )
