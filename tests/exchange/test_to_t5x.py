"""Runs as checkpoints of T5X: what real T5X wrote, imported, is written again as T5X wrote it.

That T5X restores what is written is tried with T5X itself by `python -m benchmarks.interop_t5x`.
"""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from t5xpg.data.batch import LM, PREFIX_LM
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange import to_t5x
from t5xpg.exchange.formats.t5x_files import open_checkpoint, write_checkpoint
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.exchange.t5x.adafactor import new_param_states
from t5xpg.exchange.t5x.networks import in_t5x, model_gin, network_of
from t5xpg.exchange.t5x.params import config_of, params_of, state_of
from t5xpg.experiment import config
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from t5xpg.models.parts import Heads
from t5xpg.models.positions import Buckets
from t5xpg.models.shared_encoder_decoder import SharedEncoderDecoderModel
from tests.refusals import refused
from tests.small_models import seq2seq
from tests.small_tokenizers import pieces_beside
from tests.t5x_goldens import CONTENTS, SIZES, described, unpack


def contents(folder: Path) -> dict[str, str]:
    arrays = {name: stored.read() for name, stored in open_checkpoint(folder).arrays.items()}
    return {name: described(array) for name, array in arrays.items() if array.shape != (1,)}


def below(place: str, found: dict[str, str]) -> dict[str, str]:
    return {name: said for name, said in found.items() if name.startswith(place)}


@pytest.mark.parametrize("case", ["t5_1_1", "t5_tied_bfloat16", "scalable_scanned"])
def test_what_t5x_wrote_is_written_again(case: str, runs: Path, tmp_path: Path) -> None:
    given = unpack(case, tmp_path)
    pieces_beside(given)
    import_checkpoint(str(given), runs)
    folder = to_t5x.export(config.load(case), runs / case)
    assert folder == runs / case / "t5x"
    assert below("target/", contents(folder)) == below("target/", CONTENTS[case])
    # the accumulators that T5X's own optimiser of the usual settings begins with
    assert open_checkpoint(folder).arrays.keys() >= CONTENTS[case].keys()
    assert (int(open_checkpoint(folder).arrays["state/step"].read()), folder.name) == (0, "t5x")
    assert (folder / "spiece.model").is_file()
    # and taken back, with its vocabulary
    import_checkpoint(str(folder), runs, name="again")
    first, again = (json.loads((runs / name / "run.json").read_text())["identity"] for name in (case, "again"))
    assert (again["vocabulary"], again["settings"]) == (first["vocabulary"], first["settings"])


def test_accumulators_of_layers_in_one_array_have_t5x_shapes(tmp_path: Path) -> None:
    """Those of the fixture, where T5X was told to factor small arrays, too: it factors matrices of layers always."""
    state = state_of(open_checkpoint(unpack("scalable_scanned", tmp_path)))
    model = EncoderDecoderModel(config_of(state))
    states = flatten_dict(new_param_states(in_t5x(model, params_of(state, model.config))), sep="/")
    found = {f"state/param_states/{name}": described(array) for name, array in states.items() if array.shape != (1,)}

    def shapes(said: dict[str, str]) -> dict[str, str]:
        tables = ("token_embedder/embedding/", "decoder/logits_dense/kernel/")
        inner = {name.removeprefix("state/param_states/"): one.split()[0] for name, one in said.items()}
        return {name: shape for name, shape in inner.items() if not name.startswith(tables)}

    assert shapes(found) == shapes(below("state/param_states/", CONTENTS["scalable_scanned"]))


@pytest.mark.parametrize("scanned", [False, True])
def test_adafactor_goes_with_it(scanned: bool, runs: Path, tmp_path: Path) -> None:
    import_checkpoint(str(unpack("t5_1_1", tmp_path)), runs, optimizer=True)
    overrides = ["optimizers.Adafactor.min_dim_size_to_factor=16", f"encoder_decoder.T5Config.scan_layers={scanned}"]
    folder = to_t5x.export(config.load("t5_1_1", overrides), runs / "t5_1_1", tmp_path / "out")
    assert contents(folder) == CONTENTS["t5_1_1"]
    assert (folder / "checkpoint_5").is_dir()
    text = (folder / "model.gin").read_text()
    assert "  decay_rate = 0.8\n  step_offset = 0\n  min_dim_size_to_factor = 16\n" in text
    # real T5X builds its model from it in benchmarks/interop_t5x.py
    lines = ["NETWORK = @network.Transformer()", "MODEL = @models.EncoderDecoderModel()", "  vocab_size = 264"]
    lines += ["  mlp_activations = ('gelu', 'linear')", "seqio.ByteVocabulary.extra_ids = 0"]
    assert scanned or set(lines) <= set(text.splitlines())


def test_decoders_alone_and_shared_stacks(tmp_path: Path) -> None:
    decoder = DecoderOnlyModel(T5Config(vocab_size=40, **SIZES))
    params = jax.tree.map(np.asarray, decoder.init(jax.random.key(0)))
    path = write_checkpoint(tmp_path, in_t5x(decoder, params), 3, new_param_states(in_t5x(decoder, params)))
    found = open_checkpoint(path).arrays
    assert "target/decoder/token_embedder/embedding" in found
    assert "state/param_states/decoder/token_embedder/embedding/v" in found
    for converter, has_prefix in ((PREFIX_LM, True), (LM, False)):
        text = model_gin(decoder, Vocabulary(), tmp_path, "", converter)
        assert ("  inputs_bidirectional_attention = True" in text.splitlines()) == has_prefix
    with refused("decoder alone"):
        state_of(open_checkpoint(path))
    shared = SharedEncoderDecoderModel(T5Config(vocab_size=40, **{**SIZES, "num_encoder_layers": 2}))
    params = jax.tree.map(np.asarray, shared.init(jax.random.key(0)))
    batch = seq2seq(np.asarray([[5, 6, 7, 1]]), np.asarray([[8, 9, 1]]))
    twice = jax.jit(EncoderDecoderModel(shared.config).logits)(in_t5x(shared, params), batch)
    np.testing.assert_allclose(jax.jit(shared.logits)(params, batch), twice, atol=1e-5)


def test_what_t5x_has_no_network_for() -> None:
    usual = T5Config(vocab_size=40, **SIZES)
    norms = dataclasses.replace(usual, heads=Heads(qk_norm=True))
    fewer = dataclasses.replace(usual, positions=Buckets(16, 64))
    for model, named in (
        (EncoderOnlyModel(usual), "EncoderOnlyModel"),
        (DecoderOnlyModel(dataclasses.replace(usual, positions=Buckets(in_every_layer=True))), "decoder alone"),
        (EncoderDecoderModel(norms), "qk_norm"),
        (EncoderDecoderModel(fewer), "16 up to 64"),
    ):
        with refused(named):
            network_of(model)


def test_only_exports_are_replaced(runs: Path, tmp_path: Path) -> None:
    import_checkpoint(str(unpack("t5_1_1", tmp_path)), runs)
    folder = to_t5x.export(config.load("t5_1_1"), runs / "t5_1_1", tmp_path / "out")
    assert to_t5x.export(config.load("t5_1_1"), runs / "t5_1_1", folder) == folder
    (folder / "train").mkdir()
    (folder / "train" / "events.out.tfevents.1").write_bytes(b"")
    with refused("T5X has trained"):
        to_t5x.export(config.load("t5_1_1"), runs / "t5_1_1", folder)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "t5xpg.json").write_text("{}")  # which exports for engines have, too
    with refused("no folder that an export"):
        to_t5x.export(config.load("t5_1_1"), runs / "t5_1_1", mine)
