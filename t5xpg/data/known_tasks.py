"""What is known of the table's tasks without TensorFlow: from the table and the record of the export."""

from __future__ import annotations

from pathlib import Path

from t5xpg.batch import ENC_DEC
from t5xpg.data import task_names
from t5xpg.data.client import SpanLengths, TaskDescription
from t5xpg.data.manifest import find_manifests, read_manifest
from t5xpg.data.objective_lengths import problems, spans_said
from t5xpg.data.objectives import Objective, name_of
from t5xpg.data.spec import DatasetConfig


def describe(config: DatasetConfig, data_dir: Path) -> TaskDescription | None:
    """What `DataService.describe` says of a task of the table that can be read; None where that has to be asked.

    It has to be asked of tasks that users registered, and where something is in the way. That the text and the cache
    are there and whole is the caller's to know.
    """
    name = config.mixture_or_task_name
    folders = find_manifests(data_dir)
    entries = task_names.vocabularies(data_dir)
    dataset = task_names.dataset_of(name, folders, entries)
    if dataset is None or config.module_import or config.converter != ENC_DEC:
        return None
    manifest = read_manifest(folders[dataset])
    counts = {split: record.documents for split, record in manifest.splits.items()}
    row = task_names.row_of(name, dataset, entries)
    if not row.is_of(manifest.fields) or (row.supervised is not None and config.objective is not None):
        return None
    objectives = [_with_objective(part, config.objective) for part in row.parts]
    lengths, sentinels = config.task_feature_lengths, row.vocabulary.num_sentinels
    if row.parts and not row.vocabulary.counts_down_from_last:
        return None
    if config.split not in counts or any(
        objective is None or problems(part.name, lengths, objective, sentinels, part.reserved)
        for part, objective in zip(row.parts, objectives, strict=True)
    ):
        return None
    spans = spans_said(objectives, lengths)
    return TaskDescription(
        name=name,
        tasks=tuple(sorted(row.tasks)),
        splits=tuple(sorted(counts)),
        cached=config.use_cached,
        examples={split: counts[split] for split in sorted(counts)},
        vocabulary=row.vocabulary,
        objective=None if spans is None else SpanLengths(**spans),
        has_metrics=row.has_metrics,
    )


def _with_objective(part: task_names.Part, objective: Objective | None) -> Objective | None:
    """The objective of a task in an experiment that sets one; None where it is not of the task's kind."""
    if objective is None:
        return part.objective
    return objective if name_of(objective) == name_of(part.objective) else None
