"""A new experiment is one that can be loaded and checked."""

from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import length_fit
from t5xpg.data.stream.length_fit import LengthFit
from t5xpg.data.tasks import providers
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.text.export import export_dataset
from t5xpg.data.vocab.making import train_vocabulary
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.experiment import config, new
from t5xpg.experiment.known_tasks import known_task
from tests.refusals import assert_named, refused
from tests.workplace import sentences


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "EXPERIMENTS", tmp_path / "experiments")
    monkeypatch.setenv("T5XPG_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "experiments").mkdir()
    return tmp_path / "experiments"


def test_it_has_what_was_asked_for(experiments: Path) -> None:
    file = new.write("mine", "user's_span_corruption", "t5_1_1_tiny", "adafactor")
    assert file == experiments / "mine" / "mine.gin"
    found = config.load("mine").experiment
    assert found.train_dataset.mixture_or_task_name == "user's_span_corruption"
    assert (type(found.optimizer).__name__, found.model.config.num_decoder_layers) == ("Adafactor", 4)
    assert (file.parent / "README.md").is_file()


def test_tasks_with_targets_of_their_own_get_no_objective(experiments: Path) -> None:
    supervised = ["tickets_classify", "mine_translate_en_de_mine_unigram_8000", "squad"]
    for number, task in enumerate([*supervised, "pydocs_span_corruption_byt5", "classify"]):
        new.write(f"mine_{number}", task, "byt5_tiny")
        found = config.load(f"mine_{number}").experiment.train_dataset.objective
        assert (found is None) == (task in supervised), task


@pytest.mark.parametrize(
    ("task", "objective", "model"),
    [
        ("pydocs_prefix_lm", "PrefixLM", "EncoderDecoderModel"),
        ("pydocs_next_line", "NextLine", "EncoderDecoderModel"),
        ("pydocs_iid_denoising", "IidDenoising", "EncoderDecoderModel"),
        ("pydocs_lm", "LanguageModel", "DecoderOnlyModel"),
        ("pydocs_mlm", "MaskedLM", "EncoderOnlyModel"),
        ("pydocs_ul2", "NoneType", "EncoderDecoderModel"),
    ],
)
def test_the_objective_is_that_of_the_task_and_fits(experiments: Path, task: str, objective: str, model: str) -> None:
    new.write("mine", task, "byt5_tiny")
    found, row = config.load("mine").experiment, known_task(task)
    assert type(found.train_dataset.objective).__name__ == objective
    assert type(found.model).__name__ == model
    assert row is not None
    assert row.vocabulary.size <= found.model.config.vocab_size
    for part in row.parts:
        assert part.objective.problems(task, found.lengths, row.vocabulary, part.reserved) == []


def test_an_unknown_task_is_named(experiments: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new.write("mine", "pydocs_span_coruption", "byt5_tiny")
    said = capsys.readouterr().out
    assert_named(said, ["Did you mean pydocs_span_corruption", "MODULE_IMPORT"])
    new.write("known", "pydocs_span_corruption", "byt5_tiny")
    assert "warning" not in capsys.readouterr().out


def test_the_optimizer_suits_the_model(experiments: Path) -> None:
    for model, optimizer in (("byt5_tiny", "muon_tiny"), ("byt5_small", "muon")):
        assert f"/{optimizer}.gin'" in new.write(model, "pydocs_span_corruption", model).read_text()


def test_mistakes_leave_nothing(experiments: Path) -> None:
    (experiments / "taken").mkdir()
    for name, model, optimizer, named in (
        ("a b", "byt5_tiny", "muon", "a b"),
        ("taken", "byt5_tiny", "muon", "taken"),
        ("mine", "byt5_tny", "muon", "byt5_tiny"),
        ("mine", "byt5_tiny", "moun", "muon"),
    ):
        with refused(named):
            new.write(name, "t", model, optimizer)
    assert [path.name for path in experiments.iterdir()] == ["taken"]


class InProcess:
    """The data service without its process."""

    def __enter__(self) -> "InProcess":
        register_tasks(paths.data_directory())
        return self

    def __exit__(self, *_: object) -> None: ...

    def fits(self, dataset: DatasetConfig) -> list[LengthFit]:
        return length_fit.measure(providers.find_provider(dataset), dataset)


def test_ids_and_lengths_are_those_of_the_task(experiments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new, "DataService", InProcess)
    texts = {split: [sentences(1, seed)[: 20 + 9 * seed] for seed in seeds] for split, seeds in SEEDS.items()}
    for split, lines in texts.items():
        (experiments / f"{split}.tsv").write_text("".join(f"{text}\t{text[:20]}\n" for text in lines))
    data, files = paths.data_directory(), {split: [experiments / f"{split}.tsv"] for split in texts}
    export_dataset("pairs", data_dir=data, files=files, fields={"inputs": "inputs", "targets": "targets"})
    train_vocabulary("pairs", VocabularySettings(size=90, model="bpe"), data_dir=data)
    new.write("mine", "pairs_text_to_text_pairs_bpe_90", "t5_1_1_tiny", "adafactor")
    found, row = config.load("mine").experiment, known_task("pairs_text_to_text_pairs_bpe_90")
    assert row is not None
    assert f"VOCAB_SIZE = {row.vocabulary.size}\n" in (experiments / "mine" / "mine.gin").read_text()
    assert row.vocabulary.size <= found.model.config.vocab_size < row.vocabulary.size + 128
    longest = {
        name: max(len(row.vocabulary.encode(text[:end])) + 1 for lines in texts.values() for text in lines)
        for name, end in (("inputs", None), ("targets", 20))
    }
    assert found.lengths == {name: -(-length // 8) * 8 for name, length in longest.items()}
    register_tasks(experiments / "nothing")


SEEDS = {"train": range(9), "validation": range(9, 12)}
