"""Small SeqIO tasks over text files: one file, three files, cached, and a mixture; and some real text."""

import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from t5xpg.data.late_imports import import_libraries
from t5xpg.data.text.package_documents import documentation_documents
from t5xpg.data.text.wheels import DOCUMENTATION_WHEELS, source_files, wheels_directory

# As the data process does, before any test file's `import seqio`, which takes twice the time.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors alone
import_libraries()

SAMPLE_MODULE = """
import functools
import os

import seqio
import t5.data

FOLDER = os.path.dirname(os.path.abspath(__file__))
FEATURES = dict.fromkeys(("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(extra_ids=125), add_eos=True))


def targets_of(lines):
    return lines.map(lambda line: {"targets": line})


def both_of(lines):
    return lines.map(lambda line: {"inputs": line, "targets": line})


CORRUPTION = functools.partial(t5.data.preprocessors.span_corruption, mean_noise_span_length=5.0)


def add(name, pattern, first=targets_of, then=(seqio.CacheDatasetPlaceholder(), CORRUPTION)):
    files = {split: os.path.join(FOLDER, "text", f"{split}-{pattern}.txt") for split in ("train", "validation")}
    seqio.TaskRegistry.add(
        name,
        source=seqio.TextLineDataSource(files),
        preprocessors=[first, seqio.preprocessors.tokenize, *then, seqio.preprocessors.append_eos_after_trim],
        output_features=FEATURES,
        shuffle_buffer_size=50,
    )


if "sample_one" not in seqio.TaskRegistry.names():
    seqio.add_global_cache_dirs([os.path.join(FOLDER, "cache")])
    add("sample_one", "0")  # one file
    add("sample_three", "*")  # three files
    add("sample_cached", "*")
    add("sample_absent", "absent")
    add("sample_plain", "0", both_of, ())  # no span corruption, no placeholder
    seqio.MixtureRegistry.add("sample_mixture", [("sample_one", 1.0), ("sample_cached", 2.0)])
"""

WORDS = ["the", "model", "reads", "sentence", "fills", "left", "out", "with", "words", "not", "seen", "before"]


@pytest.fixture(scope="session")
def real_texts() -> list[str]:
    """English prose: docstrings of Python packages, of some hundred to some thousand characters each."""
    files = source_files(DOCUMENTATION_WHEELS, wheels_directory())
    return list(itertools.islice(documentation_documents(files), 60))


@pytest.fixture(scope="session")
def sample_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `sample_tasks.py`, the text files that its tasks read, and the cache of `sample_cached`."""
    folder = tmp_path_factory.mktemp("sample tasks")
    (folder / "sample_tasks.py").write_text(SAMPLE_MODULE)
    (folder / "text").mkdir()
    generator = random.Random(7)
    for split, lines in (("train", 60), ("validation", 11)):
        for number in range(3):
            text = [" ".join(generator.choices(WORDS, k=generator.randrange(5, 40))) for _ in range(lines)]
            (folder / "text" / f"{split}-{number}.txt").write_text("\n".join(text) + "\n")
        _write_cache(folder, split)
    return folder


@pytest.fixture(scope="module")
def sample_tasks(sample_folder: Path) -> Iterator[Path]:
    """That folder, where `sample_tasks` can be imported, and has been."""
    from t5xpg.data.tasks import providers

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(sample_folder)
        providers.import_modules(["sample_tasks"])
        yield sample_folder


def _write_cache(folder: Path, split: str) -> None:
    """A SeqIO cache of the files of a split, as `seqio.scripts.cache_tasks_main` lays it out."""
    import seqio
    import tensorflow as tf

    cache = folder / "cache" / "sample_cached"
    cache.mkdir(parents=True, exist_ok=True)
    files = sorted((folder / "text").glob(f"{split}-*.txt"))
    lines = [file.read_text().splitlines() for file in files]
    for number, of_file in enumerate(lines):
        with tf.io.TFRecordWriter(str(cache / f"{split}.tfrecord-{number:05d}-of-{len(files):05d}")) as writer:
            for line in of_file:
                example = {"targets": np.array([byte + 3 for byte in line.encode()], np.int32)}
                writer.write(seqio.dict_to_tfexample(example).SerializeToString())
    features = {"targets": {"dtype": "int32", "shape": [None]}}
    info = {"num_shards": len(files), "features": features, "seqio_version": "0.0.20"}
    (cache / f"info.{split}.json").write_text(json.dumps(info))
    (cache / f"stats.{split}.json").write_text(json.dumps({"examples": sum(map(len, lines))}))
    (cache / "COMPLETED").write_text("")
