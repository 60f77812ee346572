"""Batches and one update of every objective and kind of vocabulary, each with its architecture."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t5xpg.data.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, validate
from t5xpg.data.cache import definition, local
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import ShardedBatches
from t5xpg.data.tasks import providers
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import known_tasks
from t5xpg.data.text.export import export_dataset
from t5xpg.data.vocab.making import copy_vocabulary, train_vocabulary
from t5xpg.data.vocab.seqio_vocabularies import from_seqio
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.losses import LossConfig
from t5xpg.models.model import Model
from t5xpg.models.rng import stream_key
from t5xpg.optim.optimizers import AdamW
from t5xpg.optim.state import TrainState, of_parameters
from t5xpg.optim.step import make_train_step
from tests.small_tokenizers import byte_level
from tests.workplace import sentences

ROWS, LENGTH = 2, 64
CONFIG = T5Config(640, 16, 2, 8, 1, 1, 32)  # of as many ids as the largest vocabulary
MODELS: Mapping[str, Model] = {
    ENC_DEC: EncoderDecoderModel(CONFIG),
    LM: DecoderOnlyModel(CONFIG),
    PREFIX_LM: DecoderOnlyModel(CONFIG),
    MASKED_LM: EncoderOnlyModel(CONFIG),
}
OPTIMIZER = AdamW(0.01)


TEXTS = [textwrap.fill(sentences(6, seed), 40) for seed in range(10)]  # documents of several lines


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tasks of a text and of vocabularies of its own."""
    folder = tmp_path_factory.mktemp("every task")
    quiet: Any = {"data_dir": folder / "data", "log": lambda line: None}
    (folder / "mine.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    export_dataset("mine", files={"train": [folder / "mine.jsonl"]}, **quiet)
    train_vocabulary("mine", VocabularySettings(size=80, extra_ids=64), name="small", **quiet)
    copy_vocabulary("mine", byte_level(folder / "bytes"), name="bytes_of", **quiet)
    register_tasks(folder / "data")
    for name in seqio.TaskRegistry.names():
        if name.startswith("mine_"):  # a buffer of 1,000 takes longest of all to fill and to write
            seqio.TaskRegistry.get(name)._shuffle_buffer_size = 20
    yield folder / "data"
    register_tasks(folder / "nothing")


@pytest.mark.parametrize(
    ("converter", "names"),
    [
        (LM, ["lm", "lm_mine_small"]),
        (PREFIX_LM, ["prefix_lm_bytes640"]),
        (MASKED_LM, ["mlm", "mlm_mine_small"]),
        (ENC_DEC, ["span_corruption_byt5", "iid_denoising", "next_line", "passkey", "ul2"]),
        (ENC_DEC, ["span_corruption_mine_small", "span_corruption_mine_bytes_of"]),
    ],
)
def test_it_takes_a_step(converter: str, names: list[str]) -> None:
    model = MODELS[converter]
    state = of_parameters(model, OPTIMIZER, model.init(stream_key(0, "parameters")))

    @jax.jit
    def update(state: TrainState, batch: Mapping[str, Any], token_bytes: Any) -> Any:
        step = make_train_step(model, OPTIMIZER, LossConfig(), num_microbatches=1, seed=0, token_bytes=token_bytes)
        return step(state, batch)

    for name in names:
        provider = seqio.get_mixture_or_task(f"mine_{name}")
        lengths = dict.fromkeys(provider.output_features if converter == LM else ("inputs", "targets"), LENGTH)
        config = DatasetConfig(f"mine_{name}", lengths, batch_size=ROWS, use_cached=False, feature_converter=converter)
        providers.check(provider, config)
        stream = ShardedBatches(provider, config, [0])
        batch = stream.next()
        assert batch is not None
        vocabulary = from_seqio(provider.output_features["targets"].vocabulary)
        validate(batch, config.batch_spec(vocab_size=vocabulary.size))
        token_bytes = np.zeros(CONFIG.vocab_size, np.int32)
        token_bytes[: vocabulary.size] = vocabulary.token_bytes()
        after, metrics = update(state, batch, token_bytes)
        assert int(after.step) == 1
        assert float(metrics["weights"]) > ROWS, f"nothing to learn of {name}"
        assert float(metrics["target_bytes"]) > 0
        # parameters as they are drawn know nothing
        loss = float(metrics["cross_entropy"] / metrics["weights"])
        assert loss == pytest.approx(np.log(CONFIG.vocab_size), rel=0.25), name
        moved = jax.tree.map(lambda one, other: float(abs(one - other).max()), state.params, after.params)
        assert 0 < max(jax.tree.leaves(moved)) < 1, name


@pytest.mark.parametrize("name", ["mine_span_corruption_mine_small", "mine_span_corruption_mine_bytes_of"])
def test_is_cached_as_its_vocabulary_says(data_dir: Path, name: str, tmp_path: Path) -> None:
    vocabulary, task = known_tasks(data_dir)[name].vocabulary, seqio.TaskRegistry.get(name)
    local.cache_task(task, tmp_path / name, "make cache", lambda count, note: None)
    files = {"train": str(tmp_path / name / "train.tfrecord*")}
    read = seqio.TFExampleDataSource(files, {"targets": tf.io.VarLenFeature(tf.int64)})
    cached = read.get_dataset("train", shuffle=False).as_numpy_iterator()
    texts = {" ".join(vocabulary.decode(example["targets"]).split()) for example in cached}
    assert texts == {" ".join(text.split()) for text in TEXTS}
    described = definition.definition_of(task, lambda path: "")["features"]["inputs"]["vocabulary"]
    assert described["model_sha256"] == vocabulary.to_json()["model_sha256"]
    assert "model_file" not in described
