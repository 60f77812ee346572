"""Caches: what SeqIO reads from them, when they are made again, and what happens when making one fails."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio

from t5xpg.data import cache_worker, caching
from t5xpg.data.caching import cache_task, read_identity
from t5xpg.data.export import export_dataset
from t5xpg.data.manifest import read_manifest
from t5xpg.data.task_table import register_tasks
from t5xpg.errors import UserError

TASK = "mine_span_corruption"


def write_export(folder: Path, rows: int) -> None:
    text = folder / "text.txt"
    text.write_text(
        "\n".join(f"Row {i} of {rows}: " + " ".join(f"w{i * j % 89}" for j in range(40)) for i in range(rows))
    )
    export_dataset("mine", data_dir=folder / "data", files={None: [text]}, log=lambda line: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a space in its path, with an export and its cache, made by the real script."""
    folder = tmp_path_factory.mktemp("a folder") / "with space"
    folder.mkdir()
    write_export(folder, 60)
    cache_task(TASK, cache_dir=folder / "cache", data_dir=folder / "data", log=lambda line: None)
    return folder


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def test_plain_seqio_reads_the_cache(folder: Path) -> None:
    register_tasks(folder / "data")
    task = seqio.TaskRegistry.get(TASK)
    before = list(seqio.utils._GLOBAL_CACHE_DIRECTORIES) if hasattr(seqio.utils, "_GLOBAL_CACHE_DIRECTORIES") else []
    seqio.add_global_cache_dirs([str(folder / "cache")])
    try:
        assert task.cache_dir == str(folder / "cache" / TASK)
        for split, record in read_manifest(folder / "data" / "mine").splits.items():
            cached = task._get_cached_source(split).get_dataset(split=split, shuffle=False)
            tokens = {bytes(example["targets"].astype(np.uint16)) for example in cached.as_numpy_iterator()}
            direct = task.preprocess_precache(task.source.get_dataset(split=split, shuffle=False), seed=0)
            assert tokens == {bytes(e["targets"].astype(np.uint16)) for e in direct.as_numpy_iterator()}
            assert len(tokens) == record.documents
            assert task.get_cached_stats(split)["examples"] == record.documents
        lengths = {"inputs": 64, "targets": 32}
        assert len(list(task.get_dataset(lengths, "train", use_cached=True, shuffle=False))) > 60
    finally:
        seqio.utils.set_global_cache_dirs(before)


def test_leaves_nothing_else_behind(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "cache").iterdir()) == [TASK, f"{TASK}.log"]


@pytest.mark.usefixtures("no_child")
def test_an_up_to_date_cache_is_not_made_again(folder: Path) -> None:
    said: list[str] = []
    identity = cache_task(TASK, cache_dir=folder / "cache", data_dir=folder / "data", log=said.append)
    assert said == [f"{TASK} is cached already"]
    assert identity == read_identity(folder / "cache" / TASK)
    manifest = read_manifest(folder / "data" / "mine")
    assert {split: files[0]["sha256"] for split, files in identity["source"]["splits"].items()} == manifest.identity
    assert identity["preprocessors"][2]["arguments"] == [{"copy_pretokenized": False}]
    assert identity["features"]["targets"]["vocabulary"]["sentinels"] == "seqio"


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("change", ["force", "text", "identity", "completed", "code", "module"])
def test_what_changed_is_looked_at_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    cache, data = tmp_path / "cache", tmp_path / "data"
    (cache / TASK).mkdir(parents=True)
    for name in ("COMPLETED", "t5xpg_identity.json"):
        (cache / TASK / name).write_bytes((folder / "cache" / TASK / name).read_bytes())
    write_export(tmp_path, 61 if change == "text" else 60)
    if change == "identity":
        (cache / TASK / "t5xpg_identity.json").write_text("{}")
    elif change == "completed":
        (cache / TASK / "COMPLETED").unlink()
    elif change == "code":
        monkeypatch.setattr(caching, "_DEFINING_FILES", ("errors.py",))
    with pytest.raises(AssertionError, match="a process was started"):
        cache_task(
            TASK,
            cache_dir=cache,
            data_dir=data,
            force=change == "force",
            module_import=["json"] if change == "module" else [],
        )


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program of a few lines in the place of the process that caches."""

    def write(body: str) -> None:
        (tmp_path / "stand_in.py").write_text(
            "import json, os, pathlib, sys, time\n"
            "request = json.loads(sys.stdin.readline())\n"
            "def report(**m): os.write(int(sys.argv[1]), (json.dumps(m) + chr(10)).encode())\n"
            "entry = dict(task='t', folder='t', definition={'task': 't'}, dataset=None, export=None, examples=3,\n"
            "             versions={}, up_to_date=False, others=False)\n"
            "out = pathlib.Path(request['output']) / 't'\n"
            "out.mkdir()\n"
            "(out / 'COMPLETED').touch()\n" + body
        )

    monkeypatch.setattr(caching, "_WORKER", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return write


def test_failures_show_the_end_of_the_log(tmp_path: Path, worker: Callable[[str], None]) -> None:
    cache = tmp_path / "cache"
    worker("report(plan=[entry]); report(count=1); print('no disk left'); sys.exit(3)")
    with pytest.raises(
        UserError, match=r"Caching t failed \(exit code 3\)\. The last lines of .*t\.log:\n  no disk left"
    ):
        cache_task("t", cache_dir=cache, data_dir=tmp_path)
    worker("report(user_error='There is no task t.'); sys.exit(0)")
    with pytest.raises(UserError, match=r"There is no task t\."):
        cache_task("t", cache_dir=cache, data_dir=tmp_path)
    assert [path.name for path in cache.iterdir()] == ["t.log"]


def test_an_earlier_cache_stays_until_the_new_one_is_whole(tmp_path: Path, worker: Callable[[str], None]) -> None:
    cache = tmp_path / "cache"
    worker("report(plan=[entry]); (out / 'first').touch(); report(count=3)")
    assert cache_task("t", cache_dir=cache, data_dir=tmp_path, log=lambda line: None) == {"task": "t"}
    worker("report(plan=[entry]); (out / 'second').touch(); report(count=1); sys.exit(1)")
    with pytest.raises(UserError):
        cache_task("t", cache_dir=cache, data_dir=tmp_path)
    assert sorted(path.name for path in (cache / "t").iterdir()) == ["COMPLETED", "first", "t5xpg_identity.json"]
    worker("report(plan=[entry | dict(up_to_date=True)])")
    said: list[str] = []
    cache_task("t", cache_dir=cache, data_dir=tmp_path, log=said.append)
    assert said == ["t is cached already"]
    worker("report(plan=[entry]); (out / 'second').touch(); report(count=3)")
    cache_task("t", cache_dir=cache, data_dir=tmp_path, force=True, log=lambda line: None)
    assert sorted(path.name for path in (cache / "t").iterdir()) == ["COMPLETED", "second", "t5xpg_identity.json"]


def test_an_interruption_ends_the_process_and_cleans_up(
    tmp_path: Path, worker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker("report(plan=[entry]); report(count=1); time.sleep(600)")
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def remember(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    monkeypatch.setattr(caching.Progress, "advance", functools.partial(_interrupt))
    with pytest.raises(KeyboardInterrupt):
        cache_task("t", cache_dir=tmp_path / "cache", data_dir=tmp_path)
    assert started[0].returncode is not None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["t.log"]


def test_scratch_folders_of_killed_processes_are_removed(tmp_path: Path, worker: Callable[[str], None]) -> None:
    cache = tmp_path / "cache"
    ended = subprocess.Popen(["true"])
    ended.wait()
    alive = caching._scratch_prefix() + "b"
    for name in (caching._scratch_prefix(ended.pid) + "a", alive, ".caching-elsewhere-1-c"):
        (cache / name).mkdir(parents=True)
    worker("report(plan=[entry]); report(count=3)")
    cache_task("t", cache_dir=cache, data_dir=tmp_path, log=lambda line: None)
    assert {path.name for path in cache.iterdir()} == {alive, ".caching-elsewhere-1-c", "t", "t.log"}


def _interrupt(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_describes_preprocessors_by_name_source_and_arguments() -> None:
    def describe(*arguments: Any, **options: Any) -> Any:
        return cache_worker._describe(functools.partial(_step, *arguments, **options))

    first = describe(3, b={"y": 1, "x": [2.0, None]}, c=_interrupt)
    assert first["function"].endswith("._step")
    assert first["arguments"][0] == 3
    assert first["arguments"][1]["b"] == {"x": [2.0, None], "y": 1}
    assert first["arguments"][1]["c"]["function"].endswith("._interrupt")
    assert first == describe(3, c=_interrupt, b={"x": [2.0, None], "y": 1})
    assert first != describe(4, b={"y": 1, "x": [2.0, None]}, c=_interrupt)
    assert describe(object()) == describe(object())
    assert cache_worker._describe(_step)["source_sha256"] != cache_worker._describe(_interrupt)["source_sha256"]


def _step(dataset: Any, *arguments: Any, **options: Any) -> Any:
    return dataset


def test_puts_records_in_an_order_that_does_not_depend_on_the_one_before(tmp_path: Path) -> None:
    import tensorflow as tf

    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={key: tf.train.Feature(int64_list=tf.train.Int64List(value=[i])) for key in "abc"}
            )
        ).SerializeToString()
        for i in range(50)
    ]
    contents = []
    for order in (1, -1):
        shards = [tmp_path / f"train.tfrecord-{i:05}-of-00004" for i in range(4)]
        for i, shard in enumerate(shards):
            with tf.io.TFRecordWriter(str(shard)) as writer:
                for record in examples[::order][i::4]:
                    writer.write(record)
        cache_worker._put_in_order(shards)
        contents.append([shard.read_bytes() for shard in shards])
        values = [
            tf.train.Example.FromString(r).features.feature["a"].int64_list.value[0]
            for r in tf.data.TFRecordDataset([str(s) for s in shards]).as_numpy_iterator()
        ]
        assert sorted(values) == list(range(50))
        assert values != sorted(values)
    assert contents[0] == contents[1]
