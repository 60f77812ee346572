"""A task cached on a cluster of Dask's, of which one worker is killed: the files of the local cacher."""

import importlib
from pathlib import Path

import pytest
import seqio
from distributed import LocalCluster

from t5xpg.data.cache import local
from t5xpg.data.cache.caching import cache_task
from tests.workplace import sentences

# the first worker that comes to a document is killed there
TASK = """
import multiprocessing, os, signal
from pathlib import Path

import seqio
import tensorflow as tf

HERE = Path(__file__).parent


def one_is_killed():
    if multiprocessing.parent_process() is not None:
        try:
            (HERE / "killed").mkdir()
        except FileExistsError:
            return 0
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def to_targets(lines):
    def target(line):
        with tf.control_dependencies([tf.py_function(one_is_killed, [], tf.int64)]):
            return {"targets": tf.identity(line)}

    return lines.map(target)


seqio.TaskRegistry.add(
    "in_several_files",
    source=seqio.TextLineDataSource({"train": str(HERE / "part-*.txt")}),
    preprocessors=[to_targets, seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder()],
    output_features={"targets": seqio.Feature(seqio.ByteVocabulary(extra_ids=125), add_eos=True)},
)
"""


@pytest.mark.process
def test_a_cluster_that_loses_a_worker_gives_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "many_files.py").write_text(TASK)
    for number in range(4):
        (tmp_path / f"part-{number}.txt").write_text(sentences(40, seed=number))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("many_files")
    local.cache_task(seqio.TaskRegistry.get("in_several_files"), tmp_path / "local", "make cache", lambda *_: None)
    folders = {"local_directory": str(tmp_path / "workers"), "dashboard_address": None}
    with LocalCluster(n_workers=2, threads_per_worker=1, **folders) as cluster:
        beam = [f"--dask_client_address={cluster.scheduler_address}", "--dask_npartitions=4"]
        cache_task(
            "in_several_files", cache_dir=tmp_path / "cluster", data_dir=tmp_path / "data", log=lambda line: None,
            module_import=["many_files"], runner="DaskRunner", beam_options=beam,
        )  # fmt: skip
    assert (tmp_path / "killed").exists()
    distributed = tmp_path / "cluster" / "in_several_files"
    names = {path.name for path in (tmp_path / "local").iterdir()}
    assert {path.name for path in distributed.iterdir()} == names | {"t5xpg_identity.json"}, "nothing of Beam's is left"
    assert len(names) == 64 + 2 + 1
    for path in (tmp_path / "local").glob("*-of-00064"):
        assert (distributed / path.name).read_bytes() == path.read_bytes(), path.name
