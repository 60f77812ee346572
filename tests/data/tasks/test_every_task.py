"""One batch and one update of every task and mixture of the table that needs no network, each with its architecture."""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio

from t5xpg.data.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, validate
from t5xpg.data.objectives import LanguageModel, MaskedLM, PrefixLM
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.pipeline import ShardedBatches
from t5xpg.data.tasks import providers
from t5xpg.data.tasks.seqio_vocabularies import from_seqio
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import TFDS_TASKS
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
from t5xpg.optim.state import TrainState, create
from t5xpg.optim.step import make_train_step
from tests.data.tasks import tfds_samples
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


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Every name that is registered, but those of texts that are not here."""
    folder = tmp_path_factory.mktemp("every task")
    data, quiet = folder / "data", {"log": lambda line: None}
    with (folder / "mine.jsonl").open("w") as file:  # documents of several lines
        texts = (textwrap.fill(sentences(6, seed), 40) for seed in range(10))
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    export_dataset("mine", data_dir=data, files={"train": [folder / "mine.jsonl"]}, **quiet)
    train_vocabulary("mine", VocabularySettings(size=80, extra_ids=64), data_dir=data, name="small", **quiet)
    for name, fields in (("pairs", ("en", "de")), ("classes", ("text", "label")), ("quiz", ("inputs", "targets"))):
        path = folder / f"{name}.tsv"
        path.write_text("".join(f"the dog sees {n}\tthe house {n % 3}\n" for n in range(20)))
        called = {field: field for field in fields}
        export_dataset(name, data_dir=data, files={"train": [path]}, fields=called, **quiet)
    (folder / "tfds").mkdir()
    tfds_samples.prepare(folder / "tfds")
    seqio.set_tfds_data_dir_override(str(folder / "tfds"))
    with pytest.MonkeyPatch.context() as patch:
        # the copy has fewer questions than are held out
        copy = dataclasses.replace(TFDS_TASKS["trivia_qa_open"], splits={"train": "train"})
        patch.setitem(TFDS_TASKS, "trivia_qa_open", copy)  # type: ignore[arg-type]
        registered = register_tasks(data)
    elsewhere = tuple(f"{name}_" for name in built_in())
    yield [name for name in registered if not name.startswith(elsewhere)]
    seqio.set_tfds_data_dir_override(None)
    register_tasks(folder / "nothing")


def converter_of(provider: providers.Provider) -> str:
    """What suits the objective of a task; mixtures and supervised tasks are for encoder and decoder."""
    objective = providers.objective_of(providers.tasks_of(provider)[0])
    kinds = {LanguageModel: LM, PrefixLM: PREFIX_LM, MaskedLM: MASKED_LM}
    is_mixture = isinstance(provider, seqio.Mixture)
    return next((to for kind, to in kinds.items() if isinstance(objective, kind) and not is_mixture), ENC_DEC)


@functools.cache
def compiled(converter: str) -> tuple[TrainState, Any]:
    """A state and an update of the model that takes such batches, compiled for all tasks."""
    model = MODELS[converter]

    def update(state: TrainState, batch: Mapping[str, Any], token_bytes: Any) -> Any:
        step = make_train_step(model, OPTIMIZER, LossConfig(), num_microbatches=1, seed=0, token_bytes=token_bytes)
        return step(state, batch)

    return create(model, OPTIMIZER, stream_key(0, "parameters")), jax.jit(update)


def take_a_step(name: str) -> str:
    """One batch of a task and one update with it; the feature converter."""
    provider = seqio.get_mixture_or_task(name)
    converter = converter_of(provider)
    lengths = dict.fromkeys(provider.output_features if converter == LM else ("inputs", "targets"), LENGTH)
    config = DatasetConfig(name, lengths, batch_size=ROWS, use_cached=False, feature_converter=converter)
    providers.check(provider, config)
    batch = ShardedBatches(provider, config, [0]).next()
    assert batch is not None
    vocabulary = from_seqio(provider.output_features["targets"].vocabulary)
    validate(batch, config.batch_spec(vocab_size=vocabulary.size))
    token_bytes = np.zeros(CONFIG.vocab_size, np.int32)
    token_bytes[: vocabulary.size] = vocabulary.token_bytes()
    state, update = compiled(converter)
    after, metrics = update(state, batch, token_bytes)
    assert int(after.step) == 1
    assert float(metrics["weights"]) > ROWS, "nothing to learn"
    assert float(metrics["target_bytes"]) > 0
    # parameters as they are drawn know nothing
    assert float(metrics["cross_entropy"] / metrics["weights"]) == pytest.approx(np.log(CONFIG.vocab_size), rel=0.25)
    moved = jax.tree.map(lambda one, other: jnp.abs(one - other).max(), state.params, after.params)
    assert all(0 < float(size) < 1 for size in jax.tree.leaves(moved) if float(size)), "an update is no number"
    assert any(float(size) > 0 for size in jax.tree.leaves(moved))
    return converter


def test_every_task_takes_a_step(names: list[str]) -> None:
    used: dict[str, list[str]] = {}
    for name in names:
        try:
            used.setdefault(take_a_step(name), []).append(name)
        except Exception as error:
            error.add_note(f"(of {name})")
            raise
    assert set(used) == set(MODELS)
    # Of text, 36 names: 14 with bytes (the eight of UL2 among them), 5 with bytes640, 4 with byt5, 13 with the trained
    # vocabulary. With each of the four: two directions of a translation, classes, pairs, three data sets of TFDS.
    assert {kind: len(found) for kind, found in used.items()} == {LM: 4, PREFIX_LM: 6, MASKED_LM: 2, ENC_DEC: 52}
    assert len(names) == 36 + 7 * 4
