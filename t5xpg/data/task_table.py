"""The table of tasks: datasets x objectives x vocabularies. Imports TensorFlow."""

from __future__ import annotations

import functools
import glob
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import seqio
import t5.data

from t5xpg.data.datasets_table import built_in
from t5xpg.data.manifest import SPLITS, find_manifests, read_manifest
from t5xpg.data.preprocessors import parse_jsonl
from t5xpg.data.seqio_vocabularies import to_seqio
from t5xpg.data.spec import SpanCorruption
from t5xpg.data.task_names import SPAN_CORRUPTION, VOCABULARIES, task_name
from t5xpg.errors import UserError

Steps = list[Callable[..., Any]]
_DATASET_NAME = re.compile(r"[A-Za-z0-9_]+")


def _span_corruption(objective: SpanCorruption) -> Steps:
    """Spans of the tokens become sentinels in the inputs and, behind the sentinels, the targets."""
    return [
        functools.partial(
            t5.data.preprocessors.span_corruption,
            noise_density=objective.noise_density,
            mean_noise_span_length=objective.mean_noise_span_length,
        ),
    ]


# name of an objective to the steps from tokens ("targets") to inputs and targets
_STEPS: Mapping[str, Callable[[SpanCorruption], Steps]] = {SPAN_CORRUPTION: _span_corruption}


def register_tasks(data_dir: Path, objective: SpanCorruption | None = None) -> list[str]:
    """Register `<dataset>_<objective>[_<vocabulary>]` for known datasets and the exports below `data_dir`.

    The tasks read `data_dir/<dataset>/<split>.jsonl`. `objective` takes the place of the table's numbers. Earlier
    registrations of the same names are replaced. Returns the names.
    """
    folders = {name: data_dir / name for name in built_in()} | find_manifests(data_dir)
    names: list[str] = []
    for dataset, folder in folders.items():
        if not _DATASET_NAME.fullmatch(dataset):
            continue  # not made by an export
        source = _source(folder)
        for objective_name, steps in _STEPS.items():
            for entry in VOCABULARIES:
                name = task_name(dataset, objective_name, entry.suffix)
                seqio.TaskRegistry.remove(name)
                feature = seqio.Feature(to_seqio(entry.vocabulary), add_eos=True)
                seqio.TaskRegistry.add(
                    name,
                    source=source,
                    preprocessors=[
                        parse_jsonl,
                        functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
                        functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
                        seqio.CacheDatasetPlaceholder(),
                        *steps(objective or entry.span_corruption),
                        seqio.preprocessors.append_eos_after_trim,
                    ],
                    output_features={"inputs": feature, "targets": feature},
                    metric_fns=[],
                )
                names.append(name)
    return names


def _source(folder: Path) -> seqio.TextLineDataSource:
    """The lines of an export, whether it is there already or not."""
    try:
        manifest = read_manifest(folder)
        counts = {split: record.documents for split, record in manifest.splits.items()}
    except UserError:
        counts = None  # not exported yet, or by another version: the commands that need it say so
    return seqio.TextLineDataSource(
        {split: split_pattern(folder, split) for split in counts or SPLITS}, num_input_examples=counts
    )


def split_pattern(folder: Path, split: str) -> str:
    """A pattern that matches the split's file alone, whatever the folder's name.

    It is always a pattern, never a plain path: SeqIO lists a plain path whether or not the file is there.
    """
    return f"{glob.escape(str(folder.resolve()))}/{split}.json[l]"
