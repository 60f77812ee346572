"""The table of tasks: datasets x objectives x vocabularies, and supervised tasks. Imports TensorFlow."""

import contextlib
import functools
import glob
from pathlib import Path
from typing import Any

import seqio

from t5xpg.base.errors import UserError
from t5xpg.data import metrics
from t5xpg.data.objectives import Objective
from t5xpg.data.preprocessors import parse_jsonl
from t5xpg.data.tasks.labelled import register_records, register_tfds
from t5xpg.data.tasks.shared_cache import register
from t5xpg.data.tasks.steps import output_features
from t5xpg.data.tasks.task_names import KnownTask, known_tasks
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.manifest import SPLITS, Manifest, find_manifests, read_manifest
from t5xpg.data.vocab.seqio_vocabularies import to_seqio

# What was registered last under each name.
ROWS: dict[str, KnownTask] = {}


def completed_line(text: str, **_: Any) -> str:
    """A postprocessor of SeqIO: the first line of a prediction or target, without the spaces around it."""
    return text.split("\n", 1)[0].strip()


def register_tasks(data_dir: Path, objective: Objective | None = None) -> list[str]:
    """Register all tasks of known datasets, exports and vocabularies below `data_dir`, and of TensorFlow Datasets, in
    the place of earlier ones; the names. objective: instead of the table's numbers, in the tasks of its kind."""
    rows, exports = known_tasks(data_dir), find_manifests(data_dir)
    ROWS.update(rows)
    sources: dict[str, tuple[seqio.DataSource, Manifest | None]] = {}
    for row in rows.values():
        if row.dataset is None:
            register_tfds(row)
            continue
        if row.dataset not in sources:
            sources[row.dataset] = _source(exports.get(row.dataset, data_dir / row.dataset))
        source, manifest = sources[row.dataset]
        if row.supervised is not None:
            fields = manifest.fields if manifest is not None else built_in()[row.dataset].fields
            register_records(row, source, fields, manifest is not None and manifest.several_answers > 0)
        elif row.objective is None:
            seqio.MixtureRegistry.remove(row.name)
            seqio.MixtureRegistry.add(row.name, [(part.name, part.rate) for part in row.parts])
        else:
            _register_task(row, source, objective)
    return list(rows)


def _register_task(row: KnownTask, source: seqio.DataSource, objective: Objective | None) -> None:
    (part,) = row.parts
    if objective is None or objective.name != part.objective.name or part.mode is not None:
        objective = part.objective
    register(
        row.name,
        row.cached_as,
        own_seed=part.mode is not None,
        source=source,
        preprocessors=[
            parse_jsonl,
            functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
            functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
            seqio.CacheDatasetPlaceholder(),
            *objective.steps(part.mode),
        ],
        output_features=output_features(part.objective, to_seqio(row.vocabulary)),
        postprocess_fn=completed_line if row.has_metrics else None,
        metric_fns=[metrics.exact_match, metrics.edit_similarity] if row.has_metrics else [],
    )


def _source(folder: Path) -> tuple[seqio.TextLineDataSource, Manifest | None]:
    """The source of an export's folder, and its manifest; None if it is not exported yet, or by another version."""
    manifest = None
    with contextlib.suppress(UserError):  # commands that need it say so
        manifest = read_manifest(folder)
    counts = None if manifest is None else {name: split.documents for name, split in manifest.splits.items()}
    # always a pattern, of the split's file alone: SeqIO lists a plain path whether or not the file is there
    patterns = {split: f"{glob.escape(str(folder.resolve()))}/{split}.json[l]" for split in counts or SPLITS}
    return seqio.TextLineDataSource(patterns, num_input_examples=counts), manifest
