"""Runs as folders for CTranslate2, which computes what the model computes."""

import importlib.util
import json
import shutil
from pathlib import Path

import ctranslate2
import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.exchange.to_ctranslate2 import ENGINE, QUANTIZATIONS, check_model, in_ctranslate2, log_likelihood
from t5xpg.exchange.to_engine import export
from t5xpg.experiment import config
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.decoding import greedy, score
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.encoder_only import EncoderOnlyModel
from tests.exchange.small_engine_models import BYTES, CASES, LENGTHS, USUAL, T, made, rows
from tests.small_models import FAMILIES, seq2seq
from tests.small_tokenizers import pieces_beside


def translated(folder: Path, inputs: np.ndarray, compute_type: str = "default") -> tuple[np.ndarray, np.ndarray]:
    """Greedy answers [B, T], padded with 0 behind the end, and the logits [B, T, V] that they were chosen from."""
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    translator = ctranslate2.Translator(str(folder), intra_threads=1, compute_type=compute_type)
    results = translator.translate_batch(
        [[tokens[token] for token in row[row > 0]] for row in inputs],
        beam_size=1, max_decoding_length=T, min_decoding_length=0, return_logits_vocab=True, return_end_token=True,
    )  # fmt: skip
    answers, logits = np.zeros((len(inputs), T), np.int32), np.zeros((len(inputs), T, len(tokens)), np.float32)
    for row, result in enumerate(results):
        found = [tokens.index(token) for token in result.hypotheses[0]]
        answers[row, : len(found)], logits[row, : len(found)] = found, [np.asarray(one) for one in result.logits[0]]
    return answers, logits


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_the_model_computes(case: str, tmp_path: Path) -> None:
    kind, settings = CASES[case]
    model, params = made(kind, **settings)
    in_ctranslate2(model, params, BYTES).save(str(tmp_path))
    answers, logits = translated(tmp_path, rows())
    decodable = model.for_decoding("EncDecFeatureConverter")
    assert decodable is not None
    decode = jax.jit(lambda params, inputs: greedy(decodable, params, inputs, T))
    np.testing.assert_array_equal(answers, decode(params, rows()))
    both = jax.jit(lambda params, batch: (model.logits(params, batch), score(model, params, batch)))
    expected, scores = map(np.asarray, both(params, seq2seq(rows(), answers)))
    compared = np.cumsum(answers == 1, axis=1) - (answers == 1) == 0  # the end included
    assert compared.sum() > 3 * T
    assert len(set(answers[compared])) > len(LENGTHS)
    np.testing.assert_allclose(logits[compared], expected[compared], atol=1e-4 * min(1.0, np.abs(expected).max()))
    np.testing.assert_allclose(log_likelihood(tmp_path, rows(), answers), scores.sum(), rtol=1e-5)


def test_quantization(tmp_path: Path) -> None:
    model, params = made(EncoderDecoderModel, emb_dim=32, mlp_dim=64)
    found = {}
    for name in QUANTIZATIONS:
        folder = tmp_path / name
        folder.mkdir()
        in_ctranslate2(model, params, BYTES, name).save(str(folder))
        logits = [translated(folder, rows(), way)[1][:, 0] for way in ("float32", "default")]
        found[name] = ((folder / "model.bin").stat().st_size, *logits)
    size, exact, _ = found.pop("float32")
    overflows = not {"avx512_vnni", "avx_vnni"} & set(environment.cpu_facts().get("flags", "").split())
    for name, (smaller, of_weights, usual) in found.items():
        assert 0 < np.abs(of_weights - exact).max() < 0.1 * np.abs(exact).max(), name
        if name != "int8" or not overflows:  # its products of 8 bits
            assert 0 < np.abs(usual - exact).max() < (0.2 if name == "int8" else 0.1) * np.abs(exact).max(), name
        assert smaller < (0.4 if name == "int8" else 0.6) * size, name


@pytest.mark.parametrize(("name", "pieces"), [("byt5", False), ("t5", False), ("t5_1_1", True)])
def test_a_run_is_written_with_its_tokenizer(
    name: str, pieces: bool, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given_folder = Path(shutil.copytree(FAMILIES / name, tmp_path / name))
    if pieces:
        (given_folder / "tokenizer.json").unlink()
        pieces_beside(given_folder)
    import_checkpoint(str(given_folder), runs)
    loaded = config.load(name)
    folder = export(ENGINE, loaded, runs / name)
    assert folder == runs / name / "ctranslate2"
    assert f"{name} after step 0 for CTranslate2, in float32: " in capsys.readouterr().out
    export(ENGINE, loaded, runs / name, folder, "int8")  # it is replaced
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    assert len(set(tokens)) == len(tokens)
    if name == "byt5":
        assert not (folder / "tokenizer.json").exists()
        assert tokens[:4] == ["<pad>", "</s>", "<unk>", "<0x00>"]
        given = [*(f"<0x{byte:02X}>" for byte in b"bad "), "<extra_id_0>", "</s>"]
    else:
        given = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("bad <extra_id_0>").tokens
    assert (folder / "spiece.model").exists() == pieces
    vocabulary = Vocabulary.from_json(json.loads((folder / "t5xpg.json").read_text())["vocabulary"])
    assert [tokens.index(token) for token in given] == [*vocabulary.encode("bad <extra_id_0>"), 1]
    settings = json.loads((folder / "config.json").read_text())
    assert {name: settings[name] for name in ("decoder_start_token", "eos_token", "unk_token")} == {
        "decoder_start_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"
    }  # fmt: skip
    (result,) = ctranslate2.Translator(str(folder)).translate_batch([given], max_decoding_length=3)
    assert set(result.hypotheses[0]) <= set(tokens)


def test_what_ctranslate2_has_nothing_for() -> None:
    for kind, settings, message in (
        (DecoderOnlyModel, {}, "CTranslate2 has no model that is known to be equal to DecoderOnlyModel: Shared"),
        (EncoderOnlyModel, {}, "equal to EncoderOnlyModel"),
        (EncoderDecoderModel, {"relative_attention_keys": True}, "CTranslate2 has no relative_attention_keys"),
        (EncoderDecoderModel, {"mlp_activations": ("tanh",)}, r"activations \('tanh',\); it has \('relu"),
        (EncoderDecoderModel, {"mlp_activations": ("gelu", "gelu")}, "no MLP with the activations"),
    ):
        with pytest.raises(UserError, match=message):
            check_model(kind(T5Config(**USUAL, **settings)))


def test_what_is_refused_before_anything_is_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_checkpoint(str(FAMILIES / "t5"), runs)
    loaded = config.load("t5")
    with pytest.raises(UserError, match=r"QUANTIZATION=int9 is not known\. Did you mean"):
        export(ENGINE, loaded, runs / "t5", quantization="int9")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.bin").write_text("my thesis")
    with pytest.raises(UserError, match="is there, and is no folder that an export for CTranslate2 wrote"):
        export(ENGINE, loaded, runs / "t5", tmp_path / "mine")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package ctranslate2, .* -m pip install ctranslate2"):
        export(ENGINE, loaded, runs / "t5")
    assert not (runs / "t5" / "ctranslate2").exists()
