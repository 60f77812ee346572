"""Batches, positions and one update of every objective and kind of vocabulary, each with its architecture."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import pytest
import seqio

from t5xpg.data.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, hash_batch, validate
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import ShardedBatches
from t5xpg.data.tasks import providers
from t5xpg.data.tasks.seqio_vocabularies import from_seqio
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.text.export import export_dataset
from t5xpg.data.vocab.making import train_vocabulary
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


@pytest.fixture(scope="module", autouse=True)
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tasks of a text and of a vocabulary of its own."""
    folder = tmp_path_factory.mktemp("every task")
    data, quiet = folder / "data", {"log": lambda line: None}
    with (folder / "mine.jsonl").open("w") as file:  # documents of several lines
        texts = (textwrap.fill(sentences(6, seed), 40) for seed in range(10))
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    export_dataset("mine", data_dir=data, files={"train": [folder / "mine.jsonl"]}, **quiet)
    train_vocabulary("mine", VocabularySettings(size=80, extra_ids=64), data_dir=data, name="small", **quiet)
    register_tasks(data)
    for name in seqio.TaskRegistry.names():
        if name.startswith("mine_"):  # a buffer of 1,000 takes longest of all to fill and to write
            seqio.TaskRegistry.get(name)._shuffle_buffer_size = 20
    yield
    register_tasks(folder / "nothing")


@pytest.mark.parametrize(
    ("converter", "names"),
    [
        (LM, ["lm", "lm_mine_small"]),
        (PREFIX_LM, ["prefix_lm_bytes640"]),
        (MASKED_LM, ["mlm", "mlm_mine_small"]),
        (ENC_DEC, ["span_corruption_byt5", "iid_denoising", "next_line", "passkey", "ul2"]),
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
        position, following = stream.save(), hash_batch(stream.next() or {})
        stream.restore(position)
        assert hash_batch(stream.next() or {}) == following != hash_batch(batch)
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
        before, then = jax.device_get((state.params, after.params))
        moved = jax.tree.map(lambda one, other: float(np.abs(one - other).max()), before, then)
        assert 0 < max(jax.tree.leaves(moved)) < 1, name
