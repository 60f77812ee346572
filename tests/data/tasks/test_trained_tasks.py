"""Tasks of the table with vocabularies that were made for the exports, read and cached."""

from pathlib import Path
from typing import Any

import pytest
import seqio
import tensorflow as tf

from t5xpg.data.batch import validate
from t5xpg.data.cache import definition, local
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import ShardedBatches
from t5xpg.data.tasks import providers
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import row_of, vocabularies
from t5xpg.data.text.export import export_dataset
from t5xpg.data.vocab.making import copy_vocabulary, train_vocabulary
from t5xpg.data.vocab.training import VocabularySettings
from tests.refusals import refused
from tests.small_tokenizers import LINES, byte_level

LENGTHS = {"inputs": 64, "targets": 24}
TRAINED, TOKENIZER, TOO_EARLY = (f"mine_span_corruption_mine_{name}" for name in ("unigram_90", "bytes_of", "early"))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data of tasks")
    for split, first in (("train", 0), ("validation", 400)):
        rows = [" ".join(LINES[i : i + 4]) for i in range(first, first + 40)]
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")
    files = {split: [folder / f"{split}.txt"] for split in ("train", "validation")}
    data_dir = folder / "data"
    export_dataset("mine", data_dir=data_dir, files=files, log=lambda line: None)

    quiet: Any = {"data_dir": data_dir, "log": lambda line: None}
    train_vocabulary("mine", VocabularySettings(size=90, extra_ids=10), **quiet)
    copy_vocabulary("mine", byte_level(folder / "bytes"), name="bytes_of", **quiet)
    # sentinels that stand before other tokens
    early = byte_level(folder / "early", special=("<pad>", "</s>", "<extra_id_0>", "<extra_id_1>"))
    copy_vocabulary("mine", early, name="early", extra_ids=0, **quiet)
    register_tasks(data_dir)
    return data_dir


@pytest.mark.parametrize("name", [TRAINED, TOKENIZER])
def test_gives_batches(data_dir: Path, name: str) -> None:
    vocabulary = row_of(name, "mine", vocabularies(data_dir)).vocabulary
    config = DatasetConfig(name, LENGTHS, batch_size=8, use_cached=False)
    batch = ShardedBatches(providers.find_provider(config), config, [0]).next()
    assert batch is not None
    validate(batch, config.batch_spec(vocab_size=vocabulary.size))
    assert "<extra_id_0>" in vocabulary.decode(batch["encoder_input_tokens"][0])
    assert vocabulary.decode(batch["decoder_target_tokens"][0]).startswith("<extra_id_0>")
    spans = [set(map(vocabulary.sentinel_index, row)) - {None} for row in batch["encoder_input_tokens"].tolist()]
    assert all(found == set(range(len(found))) and len(found) >= 2 for found in spans)


@pytest.mark.parametrize("name", [TRAINED, TOKENIZER])
def test_is_cached_as_its_vocabulary_says(data_dir: Path, name: str, tmp_path: Path) -> None:
    vocabulary = row_of(name, "mine", vocabularies(data_dir)).vocabulary
    task = seqio.TaskRegistry.get(name)
    local.cache_task(task, tmp_path / name, "make cache", lambda count, note: None)
    files = {"train": str(tmp_path / name / "train.tfrecord*")}
    read = seqio.TFExampleDataSource(files, {"targets": tf.io.VarLenFeature(tf.int64)})
    cached = read.get_dataset("train", shuffle=False).as_numpy_iterator()
    texts = {vocabulary.decode(example["targets"]) for example in cached}
    assert texts == {" ".join(LINES[i : i + 4]) for i in range(40)}
    described = definition.definition_of(task, lambda path: "")["features"]["inputs"]["vocabulary"]
    assert described["model_sha256"] == vocabulary.to_json()["model_sha256"]
    assert "model_file" not in described
    names = {path.name for path in definition.vocabulary_files(task)}
    assert names == {Path(str(vocabulary.model_file)).name, "vocabulary.json"}


def test_span_corruption_needs_sentinels_at_the_end(data_dir: Path) -> None:
    config = DatasetConfig(TOO_EARLY, LENGTHS, use_cached=False)
    with refused("last ids"):
        providers.check(providers.find_provider(config), config)
