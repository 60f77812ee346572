"""Tasks over every kind of source, each over a small copy of text in the source's own format, and where that is made.

`write_sources` writes the files and a module `source_tasks` that registers the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import seqio
import tensorflow as tf

SPLITS = ("train", "validation")
FILES = 2  # of each split

MODULE = """
import json
import pathlib

import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t5xpg.data.tasks import steps
from t5xpg.data.tasks.sources import hugging_face_source
from t5xpg.data.objectives import SpanCorruption

HERE = pathlib.Path(__file__).parent
SPLITS = ("train", "validation")
OBJECTIVE = SpanCorruption(0.15, 5.0)
VOCABULARY = seqio.ByteVocabulary(extra_ids=125)


class SmallProse(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, manager):
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split):
        for number, text in enumerate(json.loads((HERE / "texts.json").read_text())[split]):
            yield number, {"text": text}


def lines(split):
    return (HERE / "lines" / f"{split}-0.txt").read_text().splitlines()


def from_python(split, shuffle_files=False, seed=None):
    # what Python gives cannot be put back to where it was
    rows = lambda: ({"text": line} for line in lines(split))
    return tf.data.Dataset.from_generator(rows, output_signature={"text": tf.TensorSpec([], tf.string)})


def from_operations(split, shuffle_files=False, seed=None):
    return tf.data.Dataset.from_tensor_slices({"text": lines(split)})


def without_seed(split, shuffle_files):
    return from_operations(split)


def to_text(dataset):
    return dataset.map(lambda line: {"text": line})


def add(name, source, *first, placeholder=seqio.CacheDatasetPlaceholder()):
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *first,
            lambda dataset: seqio.preprocessors.rekey(dataset, {"targets": "text"}),
            seqio.preprocessors.tokenize,
            *([placeholder] if placeholder else []),
            *steps.steps(OBJECTIVE),
        ],
        output_features=steps.output_features(OBJECTIVE, VOCABULARY),
        shuffle_buffer_size=20,
    )


def pattern(folder, ending):
    return {split: str(HERE / folder / f"{split}-*{ending}") for split in SPLITS}


if "source_lines" not in seqio.TaskRegistry.names():
    add("source_lines", seqio.TextLineDataSource(pattern("lines", ".txt")), to_text)
    text = {"text": tf.io.FixedLenFeature([], tf.string)}
    add("source_examples", seqio.TFExampleDataSource(pattern("examples", ".tfrecord"), text))
    SmallProse(data_dir=str(HERE / "tfds")).download_and_prepare()
    add("source_tfds", seqio.TfdsDataSource("small_prose:1.0.0", tfds_data_dir=str(HERE / "tfds"), splits=SPLITS))
    add("source_operations", seqio.FunctionDataSource(from_operations, SPLITS))
    add("source_python", seqio.FunctionDataSource(from_python, SPLITS))
    add("source_python_plain", seqio.FunctionDataSource(from_python, SPLITS), placeholder=None)
    add("source_without_seed", seqio.FunctionDataSource(without_seed, SPLITS))
    for name, streaming in (("copied", False), ("streamed", True)):
        add(f"source_hub_{name}", hugging_face_source(str(HERE / "hub"), "prose", splits=SPLITS, streaming=streaming))
    required = seqio.CacheDatasetPlaceholder(required=True)
    add("source_required", seqio.TextLineDataSource(pattern("lines", ".txt")), to_text, placeholder=required)
    seqio.experimental.add_fully_cached_task("source_lines", {"inputs": 40, "targets": 24})
    cached = ["python", "hub_copied", "hub_streamed", "tfds", "required", "lines_i40_t24"]
    seqio.MixtureRegistry.add("source_cached", [f"source_{name}" for name in cached], default_rate=1.0)
"""


def write_sources(folder: Path, texts: Sequence[str]) -> None:
    """Write texts, of one line each, in every format below `folder`, and the module."""
    (folder / "source_tasks.py").write_text(MODULE)
    for name in ("lines", "examples", "hub/prose"):
        (folder / name).mkdir(parents=True)
    parts = {split: texts[number :: len(SPLITS)] for number, split in enumerate(SPLITS)}
    for split, part in parts.items():
        for number in range(FILES):
            rows = part[number::FILES]
            (folder / "lines" / f"{split}-{number}.txt").write_text("".join(f"{row}\n" for row in rows))
            with tf.io.TFRecordWriter(str(folder / "examples" / f"{split}-{number}.tfrecord")) as writer:
                for row in rows:
                    writer.write(seqio.dict_to_tfexample({"text": row.encode()}).SerializeToString())
            name = f"{split}-{number:05}-of-{FILES:05}.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"text": list(rows)}), folder / "hub" / "prose" / name)
    files = "".join(f"  - split: {split}\n    path: prose/{split}-*\n" for split in SPLITS)
    (folder / "hub" / "README.md").write_text(f"---\nconfigs:\n- config_name: prose\n  data_files:\n{files}---\n")
    (folder / "texts.json").write_text(json.dumps(parts))
