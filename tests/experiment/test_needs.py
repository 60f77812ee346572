"""What an experiment says that it needs: made where that can be, one line with what to type where it cannot."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_json
from t5xpg.check import checks
from t5xpg.check.plan import devices
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.vocab.record import find_vocabularies, read_record
from t5xpg.experiment import config, making, needs
from t5xpg.experiment.identity import identity_settings
from t5xpg.experiment.recipe import Recipe
from tests.experiment.test_config import write_gin
from tests.refusals import assert_named, refused
from tests.workplace import sentences

# The file that is missing of each experiment whose text or vocabulary is made of files that its user has to fetch, or
# that begins as another run; and what to type. By experiment, the words of each problem.
OF_FILES = {
    "code_prefix_lm": [("runs/code_lm", "RUN=code_lm")],
    "t5gemma_270m": [
        ("runs/gemma3_270m/tokenizer/spiece.model", "make import CHECKPOINT=gemma-3-270m-q4_k_m.gguf NAME=gemma3_270m"),
        ("INITIAL_CHECKPOINT", "runs/gemma3_270m"),
    ],
    "t5_1_1_base_c4": [("spiece.model", "curl -L -o spiece.model https://")],
    "java_csharp": [("java_csharp/train.java-cs.txt.java", "make data ")],
    "multi30k_bpe": [("multi30k_bpe/train.en", "make data ")],
    "distillation_tiny": [("multi30k_bpe/train.en", "make data ")],
    "adapters_tiny": [("multi30k_bpe/four.train.source", "make data ")],
    "nb_nn": [("nb_nn/nb_nn_train.tsv.gz", "make data ")],
    "scan_length": [("scan/train.tsv", "splits.py")],
    "title_retrieval": [("titles/train.tsv", "titles.py")],
    "translate_ende": [("multi30k/train.en.gz", "make data DATASET=multi30k FIELDS=inputs=en,targets=de FILES=")],
    "norwegian_t5_tiny": [("norwegian/train.txt", "make data ")],
}


@pytest.fixture(autouse=True)
def place(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workplace, as that of a fresh clone; the folder that commands are typed in."""
    monkeypatch.setattr("t5xpg.check.checks.DataService", None)  # TensorFlow is not started
    monkeypatch.chdir(own_place)
    return own_place


def test_needs_that_cannot_be() -> None:
    for fields, named in (
        ({"revision": "main"}, "needs.Data.revision"),
        ({"max_mb": float("inf")}, "max_mb is inf"),
        ({"sha256": {"train": 5}}, "digest of each split"),
    ):
        with refused(named):
            needs.Data("mine", **fields)  # type: ignore[arg-type]
    with refused("'a b'"):
        needs.Vocabulary("mine", 80, name="a b")


@pytest.mark.parametrize("name", sorted({path.parent.name for path in paths.EXPERIMENTS.glob("*/*.gin")}))
def test_every_experiment_can_be_trained_or_names_a_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = checks.check(name, [], [], None, devices.find_device("h200"))
    problems = re.findall(r"^\w+ +NO +(.*)$", capsys.readouterr().out, re.MULTILINE)
    if code:
        for problem, words in zip(problems, OF_FILES[name], strict=True):
            assert_named(problem, words)
    else:
        assert problems == []
        assert name not in OF_FILES


@pytest.mark.parametrize("name", [name for name in OF_FILES if name != "code_prefix_lm"])
def test_git_ignores_what_a_user_is_asked_for(name: str) -> None:
    """Or each run of an experiment that was followed to the letter would be one of changed code."""
    ignored = (paths.REPOSITORY / ".gitignore").read_text(encoding="utf-8").splitlines()
    for need in config.load(name).experiment.needs:
        files = [need.tokenizer] if isinstance(need, needs.Vocabulary) else (need.files or {}).values()
        for file in filter(None, (one for listed in files if listed for one in listed.split())):
            folder, slash, _ = file.partition("/")
            assert f"/{folder}{slash}" in ignored


PAIRS = """
from t5xpg.experiment import needs
include 'gin/objectives/none.gin'
NEEDS = (@needs.Data(), @needs.Vocabulary())
needs.Data:
  dataset = 'pairs'
  fields = 'en,de'
  files = {'train': 'train.en train.de', 'validation': 'validation.en validation.de'}
needs.Vocabulary:
  dataset = 'pairs'
  size = 60
"""
TASK = "MIXTURE_OR_TASK_NAME=pairs_translate_en_de_pairs_unigram_60"
STREAM = DatasetConfig(TASK.partition("=")[2], {"inputs": 64, "targets": 32}, use_cached=False)


OF_PAIRS = needs.Data("pairs", "en,de", {split: f"{split}.en {split}.de" for split in ("train", "validation")})
PIECES = needs.Vocabulary("pairs", 60)
MINE = needs.Data("mine", files={split: f"{split}.en" for split in ("train", "validation")})


def write_files(place: Path) -> None:
    for split, seed in (("train", 1), ("validation", 2)):
        for language in ("en", "de"):
            (place / f"{split}.{language}").write_text(sentences(20, seed))


def refusal(stream: DatasetConfig, *needed: needs.Need) -> str:
    """What `Recipe.make` refuses, which is the only problem that `make check` finds."""
    with pytest.raises(UserError) as error:
        Recipe.of(stream, needed).make()
    assert Recipe.of(stream, needed).problems == (str(error.value),)
    return str(error.value)


def test_files_and_a_vocabulary_become_what_the_task_reads(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gin(place, more=PAIRS)
    assert checks.check(file, [TASK], [], None, as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["can_be_trained"]
    assert "train.en" in "".join(one["text"] for one in found["findings"] if one["problem"])
    write_files(place)
    assert checks.check(file, [TASK], [], None) == 0
    printed = capsys.readouterr().out
    assert_named(
        printed,
        ["make data DATASET=pairs FIELDS=en,de FILES=", "make vocab DATASET=pairs SIZE=60, make cache", "at most 160"],
    )
    needed = config.load(file, [TASK]).experiment.needs
    found = Recipe.of(STREAM, needed).make()
    assert (found.data["dataset"], set(found.data["sha256"])) == ("pairs", {"train", "validation"})
    assert list(find_vocabularies(place / "data")) == ["pairs_unigram_60"]
    assert Recipe.of(STREAM, needed).ready
    assert Recipe.of(STREAM).make() == found, "what is there needs not be stated"
    # of another task nothing of it is asked
    assert not Recipe.of(DatasetConfig("pydocs_lm", {}), needed).vocabularies


def test_a_vocabulary_of_other_settings_is_refused(place: Path) -> None:
    write_files(place)
    Recipe.of(STREAM, (OF_PAIRS, PIECES)).make()
    said = refusal(STREAM, OF_PAIRS, dataclasses.replace(PIECES, character_coverage=1.0))
    assert_named(said, ["0.9995", "CHARACTER_COVERAGE=1.0 FORCE=1"])


def test_another_text_is_refused(place: Path) -> None:
    write_files(place)
    sha256 = Recipe.of(STREAM, (OF_PAIRS, PIECES)).make().data["sha256"]
    assert Recipe.of(STREAM, (dataclasses.replace(OF_PAIRS, sha256=sha256), PIECES)).ready
    other = dataclasses.replace(OF_PAIRS, sha256={**sha256, "validation": "0" * 64}, published="a page")
    named = ["validation", "000000000000…", "a page", "make data DATASET=pairs ", "--gin.needs.Data.sha256=None"]
    assert_named(refusal(STREAM, other, PIECES), named)
    shutil.rmtree(place / "data")
    with refused("validation"):
        Recipe.of(STREAM, (other, PIECES)).make()


def test_commands_are_typed_as_they_are_written() -> None:
    quoted = needs.Data("mine", files={"train": '"a b.txt"', "validation": "v$1.txt"})
    assert quoted.command == """make data DATASET=mine FILES='train="a b.txt" validation=v$1.txt'"""
    words = needs.Vocabulary("mine", size=60, extra_ids=0, byte_fallback=True)
    assert words.command == "make vocab DATASET=mine SIZE=60 EXTRA_IDS=0 BYTE_FALLBACK=1"


def test_a_copied_vocabulary_waits_for_its_file(place: Path) -> None:
    write_files(place)
    vocabulary = needs.Vocabulary("mine", tokenizer="their.model", name="theirs")
    stream = DatasetConfig("mine_lm_mine_theirs", {"targets": 64}, use_cached=False)
    state = Recipe.of(stream, (MINE, vocabulary))
    assert state.missing == (MINE.command, "make vocab DATASET=mine TOKENIZER=their.model VOCAB=theirs")
    assert_named(state.problems[0], ["mine_theirs", "their.model"])
    Recipe.of(DatasetConfig("mine_lm", {"targets": 64}, use_cached=False), (MINE,)).make()
    making.make_vocabulary("mine", needs.Vocabulary("mine", 60).settings)
    (place / "data" / "mine" / "vocabularies" / "unigram_60" / "sentencepiece.model").rename(place / "their.model")
    assert Recipe.of(stream, (MINE, vocabulary)).task.vocabulary.size <= 160
    Recipe.of(stream, (MINE, vocabulary)).make()
    record = read_record(find_vocabularies(place / "data")["mine_theirs"])
    assert record.source["kind"] == "file"


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    one_layer = [f"encoder_decoder.T5Config.num_{stack}_layers=1" for stack in ("encoder", "decoder")]
    for override, named in (
        ("needs.Data.max_mb=None", "MAX_MB=1000"),
        ("needs.Vocabulary.model=unigrm", "Did you mean unigram"),
        ("needs.Vocabulary.size=40000", "norwegian_span_corruption_norwegian_unigram_32000"),
        ("NEEDS=('norwegian',)", "NEEDS holds 'norwegian'"),
    ):
        assert checks.check("norwegian_t5", [override, *one_layer], [], None, devices.find_device("h200")) == 1
        assert named in capsys.readouterr().out


def test_needs_make_no_other_run() -> None:
    experiment = config.load("norwegian_t5").experiment
    assert [type(need).__name__ for need in experiment.needs] == ["Data", "Vocabulary"]
    assert not [name for name in identity_settings(experiment) if name.startswith("needs")]


@pytest.mark.process
def test_a_stale_cache_is_one_for_the_check_too(place: Path) -> None:
    """A cache whose files and text are as they were, of a task that was another one."""
    write_files(place)
    stream = DatasetConfig("mine_span_corruption", {"inputs": 64, "targets": 32})
    Recipe.of(stream, (MINE,)).make()
    identity = place / "cache" / "mine_span_corruption" / "t5xpg_identity.json"
    record = read_json(identity)
    record["definition"]["features"]["targets"]["vocabulary"]["extra_ids"] = 7
    write_json(identity, record)
    assert_named(refusal(stream), ["extra_ids", "make cache TASK=mine_span_corruption FORCE=1"])
