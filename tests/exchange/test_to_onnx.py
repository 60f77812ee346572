"""Runs as ONNX, which computes what the model computes, by the names that Optimum asks for."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime import quantization

from t5xpg.base.errors import UserError
from t5xpg.exchange.formats import onnx_graph
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.exchange.to_engine import export
from t5xpg.exchange.to_onnx import DECODER, ENCODER, ENGINE, check_model, log_likelihood, write_graphs
from t5xpg.experiment import config
from t5xpg.models.config import T5Config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.decoding import greedy, score
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from tests.exchange.small_engine_models import CASES, USUAL, T, made, rows
from tests.small_models import FAMILIES, relative_l2, seq2seq
from tests.workplace import Workplace


class Files:
    """The two graphs of a folder, asked as Optimum asks them: the source's keys and values are of the first call."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        sessions = [onnxruntime.InferenceSession(str(folder / name), options) for name in (ENCODER, DECODER)]
        self.encoder, self.decoder = sessions
        self.outputs = [one.name for one in self.decoder.get_outputs()]

    def encode(self, inputs: np.ndarray) -> np.ndarray:
        """[B, S] -> [B, S, D], of which the next calls are."""
        mask = (inputs > 0).astype(np.int64)
        (encoded,) = self.encoder.run(None, {"input_ids": inputs.astype(np.int64), "attention_mask": mask})
        self.given = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
        names = [one.name for one in self.decoder.get_inputs() if one.name.startswith("past_key_values.")]
        # the size of heads that Optimum takes: it is not that of the model
        self.past = {name: np.zeros((len(inputs), USUAL["num_heads"], 0, 4), np.float32) for name in names}
        self.is_first = True
        return encoded

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """tokens [B, T], behind those of earlier calls -> [B, T, V]."""
        cached = {"use_cache_branch": np.array([not self.is_first])}
        given = {"input_ids": tokens.astype(np.int64), **self.given, **self.past, **cached}
        found = dict(zip(self.outputs, self.decoder.run(None, given), strict=True))
        for name, value in found.items():
            if name.startswith("present.") and (self.is_first or ".decoder." in name):
                self.past[name.replace("present.", "past_key_values.")] = value
        self.is_first = False
        return found["logits"]

    def answers(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Greedy answers [B, T], 0 behind the end, and the logits [B, T, V] that they were chosen from."""
        self.encode(inputs)
        tokens, kept = np.zeros((len(inputs), 1), np.int64), []
        while len(kept) < T:
            kept.append(self.logits(tokens))
            tokens = kept[-1].argmax(-1)
        logits = np.concatenate(kept, axis=1)
        found = logits.argmax(-1)
        return np.where(np.cumsum(found == 1, axis=1) - (found == 1) == 0, found, 0).astype(np.int32), logits


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_the_model_computes(case: str, tmp_path: Path) -> None:
    kind, settings = CASES[case]
    model, params = made(kind, **settings)
    write_graphs(tmp_path, model, params)
    for name in (ENCODER, DECODER):
        onnx.checker.check_model(str(tmp_path / name), full_check=True)
    files, inputs = Files(tmp_path), rows()
    answers, logits = files.answers(inputs)
    decodable = model.for_decoding("EncDecFeatureConverter")
    assert decodable is not None
    decode = jax.jit(lambda params, inputs: greedy(decodable, params, inputs, T))
    np.testing.assert_array_equal(answers, decode(params, inputs))
    assert len(set(answers[answers > 0])) > len(inputs)
    batch = seq2seq(inputs, answers)
    both = jax.jit(lambda params, batch: (model.logits(params, batch), score(model, params, batch)))
    expected, scores = map(np.asarray, both(params, batch))
    tolerance = 1e-4 * min(1.0, np.abs(expected).max())
    np.testing.assert_allclose(logits[answers > 0], expected[answers > 0], atol=tolerance)
    np.testing.assert_allclose(log_likelihood(tmp_path, inputs, answers), scores.sum(), rtol=1e-5)
    # the same without a past, and with several positions behind one
    for lengths in ([T], [T - 9, 9]):
        files.encode(inputs)
        parts = np.split(batch["decoder_input_tokens"], np.cumsum(lengths)[:-1], axis=1)
        whole = np.concatenate([files.logits(part) for part in parts], axis=1)
        np.testing.assert_allclose(whole[answers > 0], expected[answers > 0], atol=tolerance)


def test_int8_loses_no_more_than_onnxruntimes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, params = made(EncoderDecoderModel, emb_dim=64, mlp_dim=256, head_dim=16)
    folders = [tmp_path / name for name in (*ENGINE.quantizations, "theirs")]
    for folder in folders:
        folder.mkdir()
        monkeypatch.setattr(onnx_graph, "_LARGEST", 1000 if folder.name == "int8" else 1 << 30)
        write_graphs(folder, model, params, folder.name)
    kinds = {"op_types_to_quantize": ["MatMul", "Gather"], "per_channel": True}
    quantization.quantize_dynamic(folders[0] / ENCODER, folders[2] / ENCODER, **kinds)
    exact, ours, theirs = (Files(folder).encode(rows())[rows() > 0] for folder in folders)
    assert 0.01 < relative_l2(ours, exact) < relative_l2(theirs, exact)
    assert (folders[1] / f"{DECODER}_data").exists()
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in folders]
    assert sizes[1] < 0.45 * sizes[0]
    exact, ours, _ = (Files(folder).answers(rows())[1][:, 0] for folder in folders)
    assert 0 < relative_l2(ours, exact) < 0.2


def test_a_run_is_written_with_its_tokenizer(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_checkpoint(str(FAMILIES / "t5_1_1"), runs)
    loaded = config.load("t5_1_1")
    folder = export(ENGINE, loaded, runs / "t5_1_1")
    assert folder == runs / "t5_1_1" / "onnx"
    assert "t5_1_1 after step 0 for ONNX, in float32: " in capsys.readouterr().out
    export(ENGINE, loaded, runs / "t5_1_1", folder, "int8")  # it is replaced
    others = ("config", "generation_config", "t5xpg", "tokenizer", "tokenizer_config")
    assert {file.name for file in folder.iterdir()} == {ENCODER, DECODER, *(f"{name}.json" for name in others)}
    settings = json.loads((folder / "config.json").read_text())
    assert (settings["architectures"], settings["eos_token_id"]) == (["T5ForConditionalGeneration"], 1)


@pytest.mark.process
def test_what_int8_loses_is_printed(workplace: Workplace, pretrained: Path, tmp_path: Path) -> None:
    for name in ("onnx", "ctranslate2"):
        export = ("export", str(workplace.experiment), f"--run={pretrained}", f"--output={tmp_path / name}")
        printed = workplace.run(*export, f"--format={name}", "--quantization=int8")
        found = re.search(r"loss of (\d+) examples of validation: (\S+) nats .* here, (\S+) in .* \((\S+)%\)", printed)
        assert found, printed
        here, there = float(found[2]), float(found[3])
        assert int(found[1]) > 1
        assert 0 < abs(there - here) < 0.05 * here


def test_what_there_are_no_graphs_for() -> None:
    for kind, settings, message in (
        (DecoderOnlyModel, {}, "Optimum has no model that is known to be equal to DecoderOnlyModel"),
        (EncoderDecoderModel, {"relative_attention_keys": True}, "The export to ONNX has no relative_attention_keys"),
        (
            EncoderDecoderModel,
            {"encoder_window": (5, 5), "sliding_window_pattern": 9},
            "The export to ONNX has no encoder_window",
        ),
        (EncoderDecoderModel, {"mlp_activations": ("tanh",)}, "no MLP with the activations"),
    ):
        with pytest.raises(UserError, match=message):
            check_model(kind(T5Config(**USUAL, **settings)))
