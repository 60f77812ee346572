"""Checkpoints of transformers as runs: what they compute, what they say of themselves, and what is refused."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from t5xpg.base import paths
from t5xpg.check.run_checks import run_findings
from t5xpg.evaluate.evaluation import check_and_prepare
from t5xpg.evaluate.trained_model import check_same_model, parameters_and_vocabulary
from t5xpg.exchange.huggingface import t5gemma
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import assembly, config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.decoding import DecodingConfig, beam_search, greedy
from t5xpg.run.directory import RunDirectory
from tests.refusals import refused
from tests.small_models import FAMILIES, seq2seq
from tests.small_tokenizers import sentencepiece_model

DECODERS = ("gemma2", "gemma3_text")
NAMES = sorted({file.parent.name for file in FAMILIES.glob("*/answers.safetensors")} - {*DECODERS})
SOURCE = "t5_1_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FAMILIES / SOURCE, tmp_path / "given"))


def change(folder: Path, **values: Any) -> None:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **values}))


def read(run: Path) -> tuple[config.LoadedConfig, Any, Any]:
    """The experiment that lies beside the checkpoint, found by its name; parameters and vocabulary."""
    loaded = config.load(run.name)
    directory = RunDirectory(run)
    check_same_model(directory, loaded.experiment)
    built = assembly.assemble(loaded.experiment)
    params, vocabulary, step = parameters_and_vocabulary(directory, loaded.experiment, built)
    assert step == 0
    return loaded, params, vocabulary


def logits_of(loaded: config.LoadedConfig, params: Any, batch: dict[str, np.ndarray]) -> np.ndarray:
    with jax.default_matmul_precision("highest"):
        return np.asarray(jax.jit(loaded.experiment.model.logits)(params, batch))


def decoded(search: Any, model: Any, params: Any, inputs: np.ndarray, expected: np.ndarray, **options: Any) -> Any:
    """Of as many tokens as are expected."""
    return jax.jit(functools.partial(search, model, max_decode_length=expected.shape[1], **options))(params, inputs)


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_transformers_computes(runs: Path, name: str) -> None:
    run = import_checkpoint(str(FAMILIES / name), runs)
    assert run == runs / name
    loaded, params, vocabulary = read(run)
    answers = load_file(FAMILIES / name / "answers.safetensors")
    inputs, greedily, model = answers["inputs"], answers["generated"], loaded.experiment.model
    assert np.abs(logits_of(loaded, params, seq2seq(inputs, answers["targets"])) - answers["logits"]).max() < 1e-4
    np.testing.assert_array_equal(decoded(greedy, model, params, inputs, greedily), greedily)
    if "beams" in answers:
        best = DecodingConfig("beam", greedily.shape[1], 4, False, "transformers", 1.0, False)
        beams = decoded(beam_search, model, params, inputs, greedily, config=best)
        np.testing.assert_array_equal(beams.tokens[:, 0], answers["beams"])
    with safe_open(FAMILIES / name / "answers.safetensors", "numpy") as file:
        texts = json.loads(file.metadata()["texts"])
    for text, ids in texts.items():
        if name == "byt5" and "<extra_id_" in text:  # Google's models were trained with other ids
            ids = [{259: 258, 260: 257}.get(token, token) for token in ids]
        assert [*vocabulary.encode(text), vocabulary.eos_id] == ids


def test_a_decoder_as_transformers_4_wrote_it() -> None:
    for name in DECODERS:
        given = json.loads((FAMILIES / name / "config.json").read_text())
        old = {key: value for key, value in given.items() if key not in ("layer_types", "rope_parameters")}
        rope = given["rope_parameters"]
        if name == "gemma3_text":
            old |= {"sliding_window_pattern": 3, "rope_local_base_freq": rope["sliding_attention"]["rope_theta"]}
            old |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 1000.0}
        else:
            old |= {"rope_theta": rope["rope_theta"]}
        weights = load_file(FAMILIES / name / "model.safetensors")
        assert t5gemma.from_transformers(old, weights)[0] == t5gemma.from_transformers(given, weights)[0]


def test_a_configuration_of_something_else() -> None:
    for name, changes, named in (
        ("gemma2", {"rope_parameters": {}}, "gemma2"),
        ("gemma2", {"sliding_window": "x"}, "gemma2"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "gemma2"),
        # as transformers 4 wrote it
        ("gemma2", {"rope_parameters": None, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"rope_parameters": None, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "linear"),
        ("gemma3_text", {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("t5gemma", {"encoder": {"sliding_window": 2}}, "sliding_window"),  # of one stack
    ):
        given = json.loads((FAMILIES / name / "config.json").read_text())
        for key, value in changes.items():
            given[key] = {**given[key], **value} if key == "encoder" else value
        if given.get("rope_parameters", 0) is None:
            del given["rope_parameters"]
            given = {"rope_theta": 1e4, **given}
        with refused(named):
            t5gemma.from_transformers(given, load_file(FAMILIES / name / "model.safetensors"))


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_alone(runs: Path, name: str) -> None:
    loaded, params, _ = read(import_checkpoint(str(FAMILIES / name), runs))
    answers = load_file(FAMILIES / name / "answers.safetensors")
    model, targets = loaded.experiment.model, answers["targets"]
    assert isinstance(model, DecoderOnlyModel)
    batch = seq2seq(targets, targets)
    del batch["encoder_input_tokens"]
    assert np.abs(logits_of(loaded, params, batch) - answers["logits"]).max() < 1e-4
    prompted, expected = model.for_decoding("LMFeatureConverter"), answers["generated"]
    np.testing.assert_array_equal(decoded(greedy, prompted, params, targets[:, :6], expected), expected)


def test_an_umt5_that_transformers_4_wrote(runs: Path, tmp_path: Path) -> None:
    """It says that it is not tied, and then its outputs are not divided by sqrt(D): its logits are sqrt(D) as large."""
    folder = Path(shutil.copytree(FAMILIES / "umt5", tmp_path / "umt5_of_4"))
    change(folder, tie_word_embeddings=False, transformers_version="4.31.0")
    loaded, params, _ = read(import_checkpoint(str(folder), runs))
    answers = load_file(folder / "answers.safetensors")
    logits = logits_of(loaded, params, seq2seq(answers["inputs"], answers["targets"]))
    assert np.abs(logits / 4 - answers["logits"]).max() < 1e-4


def test_links_out_of_the_folder_and_permissions(runs: Path, folder: Path, tmp_path: Path) -> None:
    kept = folder / "tokenizer_config.json"
    kept.chmod(0o600)
    kept.rename(folder / "the_config.json")
    kept.symlink_to("the_config.json")
    run = import_checkpoint(str(folder), runs)
    assert (run / "tokenizer" / kept.name).stat().st_mode & 0o777 == 0o600
    (folder / "the_config.json").rename(tmp_path / "secret")
    kept.unlink()
    kept.symlink_to(tmp_path / "secret")
    with refused(kept.name, str(tmp_path / "secret")):
        import_checkpoint(str(folder), runs, force=True)
    snapshot = tmp_path / "hub" / "snapshots" / "0123"
    shutil.copytree(FAMILIES / SOURCE, snapshot)
    (snapshot / kept.name).rename(tmp_path / "hub" / "blob")
    (snapshot / kept.name).symlink_to("../../blob")
    assert import_checkpoint(str(snapshot), runs, name="of_the_hub")


def test_what_the_run_says(runs: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = import_checkpoint(str(folder), runs, name="mine")
    said = capsys.readouterr().out
    assert "11,520 parameters" in said
    assert "make infer EXP=mine" in said
    assert "VOCAB=mine EXTRA_IDS=0" in (run / "mine.gin").read_text()
    directory = RunDirectory(run)
    imported = directory.imported()
    assert imported is not None
    assert imported["source"] == str(folder.resolve())
    assert list(imported["sha256"]) == ["model.safetensors"]
    assert {"tokenizer", "model.gin", "mine.gin", "vocabulary.model"} <= {path.name for path in run.iterdir()}
    # what it was imported from is not needed any more
    shutil.rmtree(folder)
    loaded, _, vocabulary = read(run)
    assert vocabulary.model_file == str(run / "tokenizer" / "tokenizer.json")
    assert loaded.experiment.model.config.dropout_rate == 0.1
    with refused("imported checkpoint"):
        list(run_findings(loaded, directory))
    with refused("Start another run"):
        directory.check("mine", {"seed": 0, "settings": {}})


def test_a_task_with_other_ids_is_refused_before_its_text_is_made(own_place: Path) -> None:
    run = import_checkpoint(str(FAMILIES / SOURCE), paths.runs_directory(), name="mine")
    loaded = config.load("mine")
    asked = dataclasses.replace(loaded.experiment.eval_dataset, mixture_or_task_name="pydocs_span_corruption")
    with refused("vocabulary", "kind huggingface"):
        check_and_prepare(loaded, RunDirectory(run), asked)
    assert not (own_place / "data").exists()


def test_an_imported_checkpoint_is_replaced_when_asked(runs: Path, folder: Path) -> None:
    run = import_checkpoint(str(folder), runs)
    with refused("FORCE=1"):
        import_checkpoint(str(folder), runs)
    weights = load_file(folder / "model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, folder / "model.safetensors")
    import_checkpoint(str(folder), runs, force=True)
    _, params, _ = read(run)
    np.testing.assert_array_equal(params["token_embedder"]["embedding"], 2 * weights["shared.weight"])
    (runs / "other").mkdir()
    (runs / "other" / "thesis.txt").touch()
    with refused("no imported checkpoint"):
        import_checkpoint(str(folder), runs, name="other", force=True)
    assert (runs / "other" / "thesis.txt").exists()


def test_a_sentencepiece_model(runs: Path, folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    sentencepiece_model(folder / "spiece.model", vocab_size=40)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 8}))
    _, _, vocabulary = read(import_checkpoint(str(folder), runs, name="pieces"))
    assert (vocabulary.kind, vocabulary.size, vocabulary.sentinel_id(0)) == ("sentencepiece", 48, 47)
    text = (runs / "pieces" / "pieces.gin").read_text()
    assert "make vocab DATASET=pydocs" in text
    assert "spiece.model VOCAB=pieces EXTRA_IDS=8" in text
    assert "MIXTURE_OR_TASK_NAME = 'pydocs_span_corruption_pydocs_pieces'" in text


def test_another_tokenizer_comes_without_the_files_of_the_first(runs: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shutil.copy(folder / "tokenizer.json", tmp_path / "other")
    change(folder, architectures=5)  # which says nothing
    run = import_checkpoint(str(folder), runs, tokenizer=str(tmp_path / "other"))
    assert [file.name for file in (run / "tokenizer").iterdir()] == ["tokenizer.json"]


def test_names_of_folders_are_no_statements(runs: Path, tmp_path: Path) -> None:
    """They stand in comments of gin files, which name Python functions otherwise."""
    folder = Path(shutil.copytree(FAMILIES / SOURCE, tmp_path / "it's\nMODEL = @os.abort()"))
    loaded, _, _ = read(import_checkpoint(str(folder), runs, name="harmless"))
    assert loaded.experiment.model.config.emb_dim == 16
    assert "\nMODEL = @" not in (runs / "harmless" / "harmless.gin").read_text()


def write(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


# of what a folder holds; what is wrong with each file: huggingface/ and formats/
BAD: dict[str, tuple[Any, str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "no JSON": (write("config.json", "{"), "config.json"),
    "no object": (write("config.json", "[]"), "config.json"),
    "another class": (lambda folder: change(folder, architectures=["T5EncoderModel"]), "only encoder-decoders"),
    "a cut file": (write("model.safetensors", "\x10\0\0\0\0\0\0\0{"), "model.safetensors"),
    "another end": (lambda folder: change(folder, eos_token_id=7), "is 7 by its config.json"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_checkpoints(runs: Path, folder: Path, what: str) -> None:
    spoil, named = BAD[what]
    spoil(folder)
    with refused(named):
        import_checkpoint(str(folder), runs)
    assert not runs.exists() or not list(runs.iterdir())


def test_bad_options(runs: Path) -> None:
    for options, named in (
        ({"name": "a/b"}, "NAME=a/b"),
        ({"name": "byt5_tiny"}, "NAME=byt5_tiny"),
        ({"sentinels": "sekio"}, "Did you mean seqio"),
        ({"sentinels": "byt5_google"}, "SENTINELS=byt5_google"),
    ):
        with refused(named):
            import_checkpoint(str(FAMILIES / SOURCE), runs, **options)  # type: ignore[arg-type]
