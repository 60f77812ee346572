"""The registered tasks, read by plain SeqIO."""

from pathlib import Path

import pytest
import seqio

from t5xpg.data.spec import SpanCorruption
from t5xpg.data.stream import worker
from t5xpg.data.tasks import steps
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import cache_command, known_tasks, rows, tfds_rows
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.labelled import TEXT
from tests.workplace import run_python


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with [brackets], a * and spaces")
    text = folder / "text.txt"
    rows = [f"Row {i}: " + " ".join(f"word{i * j % 97}" for j in range(30)) for i in range(200)]
    text.write_text("\n".join([*rows, ""]))
    export_dataset("mine", data_dir=folder / "data", files={None: [text]}, log=lambda line: None)
    return folder / "data"


def test_knows_the_export(data_dir: Path) -> None:
    names = register_tasks(data_dir)
    datasets = {name: dataset.fields for name, dataset in built_in().items()} | {"mine": TEXT}
    of_exports = [row.name for dataset, fields in datasets.items() for row in rows(dataset, fields=fields)]
    assert sorted(names) == sorted([*(row.name for row in tfds_rows()), *of_exports])
    task = seqio.TaskRegistry.get("mine_span_corruption")
    examples = {split: task.num_input_examples(split) for split in task.splits}
    assert examples == {"train": 184, "validation": 8, "test": 8}
    assert set(task.output_features) == {"inputs", "targets"}
    assert task.output_features["inputs"].vocabulary == seqio.ByteVocabulary(extra_ids=125)
    assert task.supports_caching
    assert worker._examples(seqio.get_mixture_or_task("mine_ul2"), "train") == 184  # the text of all seven
    # one that is not exported has tasks without files
    missing = seqio.TaskRegistry.get("wikitext_span_corruption")
    assert set(missing.splits) == {"train", "validation", "test"}
    assert missing.num_input_examples("train") is None
    assert list(missing.source.list_shards("train")) == []
    # another objective
    register_tasks(data_dir, SpanCorruption(0.5, 4.0))
    assert steps.objective_of(seqio.TaskRegistry.get("mine_span_corruption")) == SpanCorruption(0.5, 4.0)


def test_the_names_say_what_a_task_reads(data_dir: Path) -> None:
    names = register_tasks(data_dir)
    every = ("span_corruption", "prefix_lm", "lm", "next_line", "passkey")
    assert {name.removeprefix("mine_") for name in names if name.startswith("mine_")} == {
        *every, "iid_denoising", "iid_denoising_bytes640", "mlm", "ul2",
        *(f"ul2_{one}" for one in ("r1", "r2", "s", "x1", "x2", "x3", "x4")),
        *(f"{one}_{vocabulary}" for one in every for vocabulary in ("bytes640", "byt5")),
    }  # fmt: skip
    # a name that two datasets could have
    known = known_tasks(data_dir, {"a_prefix": TEXT, "a": TEXT})
    assert (known["a_prefix_lm"].dataset, known["a_prefix_prefix_lm"].dataset) == ("a", "a_prefix")
    assert known_tasks(data_dir, {"a_prefix": TEXT})["a_prefix_lm"].dataset == "a_prefix"
    assert "mine_span_corruption_as_i_like_it" not in known
    assert cache_command("blend", ["a", "b.c"], force=True) == "make cache TASK=blend MODULE_IMPORT=a,b.c FORCE=1"


@pytest.mark.process
def test_importing_the_module_registers_them_for_plain_seqio(data_dir: Path, tmp_path: Path) -> None:
    program = (
        "import seqio, t5xpg.tasks\n"
        "task = seqio.get_mixture_or_task('mine_span_corruption')\n"
        "print(sum(1 for _ in task.get_dataset({'inputs': 64, 'targets': 32}, 'test', use_cached=False)) > 10)\n"
        "print(seqio.utils.get_global_cache_dirs())\n"
    )
    folders = {"T5XPG_DATA_DIR": str(data_dir), "T5XPG_CACHE_DIR": str(tmp_path / "caches here")}
    printed = run_python(program, env={**folders, "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"})
    assert printed.splitlines() == ["True", str([str(tmp_path / "caches here")])]
