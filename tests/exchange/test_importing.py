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
from t5xpg.base.errors import UserError
from t5xpg.check.run_checks import run_findings
from t5xpg.evaluate.evaluation import check_and_prepare
from t5xpg.evaluate.trained_model import check_same_model, parameters_and_vocabulary
from t5xpg.exchange.huggingface import t5gemma
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.experiment import assembly, config
from t5xpg.models.decoder_only import DecoderOnlyModel
from t5xpg.models.decoding import DecodingConfig, beam_search, greedy
from t5xpg.run.directory import RunDirectory
from tests.small_models import FAMILIES, seq2seq
from tests.small_tokenizers import sentencepiece_model

DECODERS = ("gemma2", "gemma3_text")
NAMES = sorted({file.parent.name for file in FAMILIES.glob("*/answers.safetensors")} - {*DECODERS})
SOURCE = "t5_1_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be changed."""
    return Path(shutil.copytree(FAMILIES / SOURCE, tmp_path / "given"))


def change(folder: Path, name: str = "config.json", **values: Any) -> None:
    said = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**said, **values}))


def read(run: Path) -> tuple[config.LoadedConfig, Any, Any]:
    """The experiment that lies beside the checkpoint, found by its name; parameters and vocabulary."""
    loaded = config.load(run.name)
    directory = RunDirectory(run)
    check_same_model(directory, loaded.experiment)
    built = assembly.assemble(loaded.experiment)
    params, vocabulary, step = parameters_and_vocabulary(directory, loaded.experiment, built)
    assert step == 0
    return loaded, params, vocabulary


def logits_of(loaded: config.LoadedConfig, params: Any, answers: dict[str, np.ndarray]) -> np.ndarray:
    batch = seq2seq(answers["inputs"], answers["targets"])
    with jax.default_matmul_precision("highest"):
        return np.asarray(jax.jit(loaded.experiment.model.logits)(params, batch))


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_transformers_computes(runs: Path, name: str) -> None:
    run = import_checkpoint(str(FAMILIES / name), runs)
    assert run == runs / name
    loaded, params, vocabulary = read(run)
    answers = load_file(FAMILIES / name / "answers.safetensors")
    assert np.abs(logits_of(loaded, params, answers) - answers["logits"]).max() < 1e-4
    model, length = loaded.experiment.model, answers["generated"].shape[1]
    decode = jax.jit(functools.partial(greedy, model, max_decode_length=length))
    np.testing.assert_array_equal(decode(params, answers["inputs"]), answers["generated"])
    if "beams" in answers:
        best = DecodingConfig("beam", length, 4, False, "transformers", 1.0, False)
        beams = jax.jit(functools.partial(beam_search, model, max_decode_length=length, config=best))
        np.testing.assert_array_equal(beams(params, answers["inputs"]).tokens[:, 0], answers["beams"])
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


@pytest.mark.parametrize("changes", [{"rope_parameters": {}}, {"sliding_window": "x"}, {"query_pre_attn_scalar": 0}])
def test_a_damaged_config_of_a_decoder(changes: dict[str, Any]) -> None:
    given = json.loads((FAMILIES / "gemma2" / "config.json").read_text())
    with pytest.raises(UserError, match="lacks a setting of gemma2, or has another kind of value for it"):
        t5gemma.from_transformers({**given, **changes}, load_file(FAMILIES / "gemma2" / "model.safetensors"))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, "has use_bidirectional_attention, which no model here has"),
        ("gemma2", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rotary positions are linear"),
        ("gemma3_text", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rotary positions are default, dynamic"),
    ],
)
def test_a_decoder_that_computes_something_else(name: str, changes: dict[str, Any], said: str) -> None:
    given = json.loads((FAMILIES / name / "config.json").read_text())
    del given["rope_parameters"]  # as transformers 4 wrote it
    with pytest.raises(UserError, match=said):
        t5gemma.from_transformers(
            {"rope_theta": 1e4, **given, **changes}, load_file(FAMILIES / name / "model.safetensors")
        )


def test_stacks_with_other_windows() -> None:
    given = json.loads((FAMILIES / "t5gemma" / "config.json").read_text())
    given["encoder"]["sliding_window"] += 2
    with pytest.raises(UserError, match=r"encoder has sliding_window .*: only models whose two stacks are alike"):
        t5gemma.from_transformers(given, load_file(FAMILIES / "t5gemma" / "model.safetensors"))


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_alone(runs: Path, name: str) -> None:
    loaded, params, _ = read(import_checkpoint(str(FAMILIES / name), runs))
    answers = load_file(FAMILIES / name / "answers.safetensors")
    model, targets = loaded.experiment.model, answers["targets"]
    assert isinstance(model, DecoderOnlyModel)
    batch = {"decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))), "decoder_target_tokens": targets}
    with jax.default_matmul_precision("highest"):
        assert np.abs(jax.jit(model.logits)(params, batch) - answers["logits"]).max() < 1e-4
    prompted, length = model.for_decoding("LMFeatureConverter"), answers["generated"].shape[1]
    decode = jax.jit(functools.partial(greedy, prompted, max_decode_length=length))
    np.testing.assert_array_equal(decode(params, targets[:, :6]), answers["generated"])


def test_an_umt5_that_transformers_4_wrote(runs: Path, tmp_path: Path) -> None:
    """It says that it is not tied, and then its outputs are not divided by sqrt(D): its logits are sqrt(D) as large."""
    folder = Path(shutil.copytree(FAMILIES / "umt5", tmp_path / "umt5_of_4"))
    change(folder, tie_word_embeddings=False, transformers_version="4.31.0")
    loaded, params, _ = read(import_checkpoint(str(folder), runs))
    answers = load_file(folder / "answers.safetensors")
    assert np.abs(logits_of(loaded, params, answers) / 4 - answers["logits"]).max() < 1e-4


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
    with pytest.raises(UserError, match=f"{kept.name} is a link to {tmp_path / 'secret'}, outside of {folder}"):
        import_checkpoint(str(folder), runs, force=True)
    snapshot = tmp_path / "hub" / "snapshots" / "0123"
    shutil.copytree(FAMILIES / SOURCE, snapshot)
    (snapshot / kept.name).rename(tmp_path / "hub" / "blob")
    (snapshot / kept.name).symlink_to("../../blob")
    assert import_checkpoint(str(snapshot), runs, name="of_the_hub")


def test_what_the_run_says(runs: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = import_checkpoint(str(folder), runs, name="mine")
    said = capsys.readouterr().out
    assert "t5, 11,520 parameters, huggingface, 40 ids, sentinels as own" in said
    assert "make infer EXP=mine" in said
    assert "tokenizer.json VOCAB=mine EXTRA_IDS=0 && make eval EXP=mine\n" in (run / "mine.gin").read_text()
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
    with pytest.raises(UserError, match="holds an imported checkpoint"):
        list(run_findings(loaded, directory))
    with pytest.raises(UserError, match=r"not trained on where it is\. Start another run from it"):
        directory.check("mine", {"seed": 0, "settings": {}})


def test_a_task_with_other_ids_is_refused_before_its_text_is_made(own_place: Path) -> None:
    run = import_checkpoint(str(FAMILIES / SOURCE), paths.runs_directory(), name="mine")
    loaded = config.load("mine")
    asked = dataclasses.replace(loaded.experiment.eval_dataset, mixture_or_task_name="pydocs_span_corruption")
    with pytest.raises(UserError, match="was trained with another vocabulary than the task has: kind huggingface"):
        check_and_prepare(loaded, RunDirectory(run), asked)
    assert not (own_place / "data").exists()


def test_an_imported_checkpoint_is_replaced_when_asked(runs: Path, folder: Path) -> None:
    run = import_checkpoint(str(folder), runs)
    with pytest.raises(UserError, match=r"holds an imported checkpoint already\. FORCE=1 replaces it"):
        import_checkpoint(str(folder), runs)
    weights = load_file(folder / "model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, folder / "model.safetensors")
    import_checkpoint(str(folder), runs, force=True)
    _, params, _ = read(run)
    np.testing.assert_array_equal(params["token_embedder"]["embedding"], 2 * weights["shared.weight"])
    (runs / "other").mkdir()
    (runs / "other" / "thesis.txt").touch()
    with pytest.raises(UserError, match="holds no imported checkpoint"):
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
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        r"has no config\.json: expected a folder that `save",
    ),
    "no JSON": (write("config.json", "{"), r"config\.json is not JSON"),
    "no object": (write("config.json", "[]"), r"config\.json holds no settings: expected an object"),
    "another class": (lambda folder: change(folder, architectures=["T5EncoderModel"]), "only encoder-decoders can be"),
    "a cut file": (write("model.safetensors", "\x10\0\0\0\0\0\0\0{"), "is not a whole safetensors file"),
    "another end": (lambda folder: change(folder, eos_token_id=7), "is 7 by its config.json, and 1 by its tokenizer"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_checkpoints(runs: Path, folder: Path, what: str) -> None:
    spoil, message = BAD[what]
    spoil(folder)
    with pytest.raises(UserError, match=message) as raised:
        import_checkpoint(str(folder), runs)
    assert "\n" not in str(raised.value)
    assert not runs.exists() or not list(runs.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a/b"}, r"NAME=a/b: expected letters"),
        ({"name": "byt5_tiny_demo"}, "NAME=byt5_tiny_demo is an experiment"),
        ({"sentinels": "sekio"}, r"SENTINELS=sekio is no convention\. Did you mean seqio"),
        ({"sentinels": "byt5_google"}, "SENTINELS=byt5_google is for bytes; this huggingface vocabulary"),
    ],
)
def test_bad_options(runs: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_checkpoint(str(FAMILIES / SOURCE), runs, **options)
