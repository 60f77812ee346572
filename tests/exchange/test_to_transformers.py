"""Runs as folders for transformers, and what is left where transformers makes something else of one."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.evaluate.trained_model import parameters_and_vocabulary
from t5xpg.exchange import to_transformers
from t5xpg.exchange.huggingface import transformers_check
from t5xpg.exchange.huggingface.architectures import SEQ2SEQ, Exported
from t5xpg.exchange.huggingface.config import config_to_transformers
from t5xpg.exchange.huggingface.generation_config import differences, generation_config
from t5xpg.exchange.huggingface.model_card import model_card
from t5xpg.exchange.huggingface.tokenizer_files import SAMPLES, expected_ids, tokenizer_type
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import config
from t5xpg.experiment.assembly import assemble
from t5xpg.models.config import T5Config
from t5xpg.models.decoding import DecodingConfig
from t5xpg.models.positions import Buckets
from t5xpg.run.directory import RunDirectory
from t5xpg.run.results import collect
from tests.refusals import assert_named, refused
from tests.run.test_report import make_run
from tests.small_models import FAMILIES
from tests.written_evaluations import write_evaluation

NAMES = sorted(file.parent.name for file in FAMILIES.glob("*/answers.safetensors"))


def export(runs: Path, name: str, output: Path | None = None) -> Path:
    """What an import of a family's golden is as an export."""
    if not (runs / name).exists():
        import_checkpoint(str(FAMILIES / name), runs)
    return to_transformers.export(config.load(name), runs / name, output)[0]


@pytest.mark.parametrize("name", [name for name in NAMES if "gemma" not in name])
def test_what_is_written_is_what_transformers_wrote(runs: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = export(runs, name)
    assert folder == runs / name / "huggingface"
    theirs = FAMILIES / name
    written, expected = load_file(folder / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert sorted(written) == sorted(expected)
    for key, value in expected.items():
        assert written[key].dtype == value.dtype
        np.testing.assert_array_equal(written[key], value)
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    ours, given = (json.loads((one / "config.json").read_text()) for one in (folder, theirs))
    assert ours["model_type"] == {"mt5": "t5"}.get(given["model_type"], given["model_type"])
    others = {"architectures", "model_type", "tie_word_embeddings", "scale_decoder_outputs", "dtype", "eos_token_id"}
    assert {key: ours[key] for key in ours.keys() - others} == {key: given[key] for key in ours.keys() - others}
    ours, given = (json.loads((one / "generation_config.json").read_text()) for one in (folder, theirs))
    for key in ("decoder_start_token_id", "eos_token_id", "pad_token_id"):
        assert ours[key] == given[key]
    assert (folder / "README.md").read_text().startswith('---\nlibrary_name: "transformers"\n')
    assert not (folder / "results.json").exists()
    assert transformers_check.NOT_CHECKED in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in NAMES if "t5gemma" in name])
def test_a_t5gemma_is_read_again_as_it_was(runs: Path, name: str) -> None:
    """Its query_pre_attn_scalar is another one, and what it computes is the same."""
    folder = export(runs, name)
    assert json.loads((folder / "config.json").read_text())["model_type"] == name.split("_")[0]
    assert json.loads((folder / "generation_config.json").read_text())["decoder_start_token_id"] == 2
    import_checkpoint(str(folder), runs, name="again")
    once, again = (config.load(one).experiment for one in (name, "again"))
    assert once.model == again.model
    trees = [parameters_and_vocabulary(RunDirectory(runs / one), once, assemble(once))[0] for one in (name, "again")]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), *trees)


def test_an_umt5_of_bytes_is_loaded_with_the_tokenizers_name() -> None:
    """transformers 5.23 would load the class of tokenizer.json, which bytes have not."""
    assert tokenizer_type("umt5", Vocabulary()) == "byt5"
    assert tokenizer_type("t5", Vocabulary()) is None
    config = T5Config(vocab_size=384, positions=Buckets(in_every_layer=True))
    assert 'tokenizer_type="byt5"' in card(Exported(SEQ2SEQ, config_to_transformers(config), {}), results=None, step=1)


def card(exported: Exported, **facts: Any) -> str:
    config = T5Config(vocab_size=384)
    fixed = {"config": config, "num_params": 1, "vocabulary": Vocabulary(), "imported": None}
    return model_card("a", exported=exported, **fixed, **facts)


def test_the_card_of_a_translation_shows_one_and_has_its_metrics(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    how = {"examples": 9, "decoding": {"method": "greedy", "task_feature_lengths": {}}}
    measured = {"step": 600, "split": "dev", "metrics": {"en_de": {"bleu": 40.7}}, "predicted": {"en_de": how}}
    said = [{"input": "translate: a dog", "prediction": "b", "target": "c"}]
    write_evaluation(run, measured, samples=said)
    exported = Exported(SEQ2SEQ, config_to_transformers(T5Config(vocab_size=384)), {}, notes=("Load it as `T5Model`",))
    written = card(exported, results=collect(run), step=600)
    assert_named(written, ["tokenizer('translate: a dog'", "Load it as `T5Model`"])
    assert to_transformers._results_at(run, 600) == collect(run)
    write_evaluation(run, {"step": 600, "mean_of_checkpoints": 3})  # the card is of the last step's parameters
    found = to_transformers._results_at(run, 600) or {}
    assert (found["evaluation"]["split"], found["samples"]) == ("dev", said)
    (line,) = (line for line in written.splitlines() if line.startswith("model-index: "))
    (found,) = json.loads(line.removeprefix("model-index: "))[0]["results"]
    assert found["dataset"]["split"] == "dev"
    assert found["metrics"][-1] == {"type": "bleu", "value": 40.7, "args": {"task": "en_de", **how}}


def test_an_export_is_imported_as_it_was(runs: Path) -> None:
    """Of the family with the most in its way: the head is multiplied there and back."""
    folder = export(runs, "umt5")
    import_checkpoint(str(folder), runs, name="again")
    again, _ = to_transformers.export(config.load("again"), runs / "again")
    for name in ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_only_exports_are_replaced(runs: Path, tmp_path: Path) -> None:
    folder = export(runs, "t5", tmp_path / "out")
    export(runs, "t5", folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("my thesis")
    for target in (tmp_path / "mine", tmp_path / "mine" / "README.md"):
        with refused("no folder that an export wrote"):
            export(runs, "t5", target)
    assert (tmp_path / "mine" / "README.md").read_text() == "my thesis"


class Transformers:
    """Stands for transformers: answers as this program does, but for `wrong`: what is added, or the ids of a text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong: dict[str, Any] = {}
        self._right: dict[str, np.ndarray] = {}
        self._ours = transformers_check._ours
        monkeypatch.setattr(transformers_check, "_ours", self.ours)
        monkeypatch.setattr(transformers_check, "_theirs", self.theirs)
        monkeypatch.setenv(transformers_check.PYTHON_VARIABLE, sys.executable)

    def ours(self, *arguments: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Of one run, computed once."""
        if not self._right:
            logits, generated = self._ours(*arguments)
            assert generated is not None
            self._right, self._vocabulary = {"logits": logits, "generated": generated}, arguments[3]
        return self._right["logits"], self._right["generated"]

    def theirs(self, python: Path, folder: Path, given: Any, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        assert (folder / "config.json").is_file()
        assert given["inputs"].shape[0] == given["decoder_inputs"].shape[0]
        ids = [self.wrong.get(text, expected_ids(self._vocabulary, text)) for text in settings["texts"]]
        said = {"ids": ids, "model": "T5", "tokenizer": "Tokens", "versions": {"torch": "1", "transformers": "2"}}
        return {name: array + self.wrong.get(name, 0) for name, array in self._right.items()}, said


def test_a_difference_is_an_error_and_nothing_is_left(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_checkpoint(str(FAMILIES / "byt5"), runs)
    transformers = Transformers(monkeypatch)
    folder = export(runs, "byt5", tmp_path / "right")
    assert "logits differ by at most 0.0e+00" in capsys.readouterr().out
    assert "T5 and Tokens" in (folder / "README.md").read_text()
    for what, value, named in (
        ("logits", 0.01, "1.0e-02"),
        ("generated", 1, "greedy answers"),
        (SAMPLES[3], [5], "[5]"),
    ):
        transformers.wrong = {what: value}
        with refused(named):
            export(runs, "byt5", tmp_path / "wrong")
        assert not [path for path in tmp_path.iterdir() if "wrong" in path.name]


@pytest.mark.process
def test_a_transformers_that_fails(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_checkpoint(str(FAMILIES / "t5"), runs)
    python = tmp_path / "python"
    monkeypatch.setenv(transformers_check.PYTHON_VARIABLE, str(python))
    with refused("torch and transformers"):
        export(runs, "t5", tmp_path / "out")
    python.write_text('#!/bin/sh\necho ImportError: beside it are $(ls $(dirname "$1")) >&2; exit 1\n')
    python.chmod(0o755)
    with refused("ImportError: beside it are transformers_outputs.py.", "T5XPG_TORCH_PYTHON=0"):
        export(runs, "t5", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_generate_cannot_do_is_said() -> None:
    for named, settings in (
        ([], {"method": "greedy"}),
        ([], {"method": "beam", "length_penalty": "transformers"}),
        (["penalty"], {"method": "beam"}),
        (["limit"], {"method": "beam", "length_penalty": "transformers", "extra_length": 5}),
        (["penalty", "limit"], {"method": "beam", "extra_length": 5}),
        ([], {"method": "sample"}),
        (["likeliest"], {"method": "sample", "num_decodes": 4}),
        (["limit"], {"method": "greedy", "extra_length": 5}),
        (["most like the others"], {"method": "sample", "num_decodes": 4, "ranked_by": "consensus"}),
    ):
        found = differences(DecodingConfig(**settings))
        assert len(found) == bool(named)
        assert_named(" ".join(found), named)


def test_methods_of_decoding() -> None:
    vocabulary = Vocabulary("bytes", 125)

    def options(**settings: object) -> dict[str, object]:
        found = generation_config(DecodingConfig(**settings), vocabulary, 32, 0)  # type: ignore[arg-type]
        fixed = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
        assert {name: found.pop(name) for name in fixed} == fixed
        return found

    assert options() == {"max_new_tokens": 32}
    assert options(max_decode_length=7) == {"max_new_tokens": 7}
    beams = options(method="beam", num_decodes=3, length_penalty="transformers", alpha=1.0, return_all_decodes=False)
    said = {"num_beams": 3, "num_return_sequences": 1, "length_penalty": 1.0, "early_stopping": False}
    assert beams == {"max_new_tokens": 32, **said}
    assert options(method="beam") == {"max_new_tokens": 32}
    said = {"do_sample": True, "num_return_sequences": 1, "temperature": 0.5, "top_k": 7, "top_p": 1.0}
    assert options(method="sample", temperature=0.5, topk=7) == {"max_new_tokens": 32, **said}
    assert options(method="sample", temperature=0.0) == {"max_new_tokens": 32}
