"""A task cached on a cluster of Dask's, of which one worker is killed: the files of the local cacher."""

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import seqio

from t5xpg.data.cache import local
from t5xpg.data.cache.caching import cache_task
from tests.workplace import REPOSITORY, sentences

pytestmark = pytest.mark.process

# the documents of one file wait for the other worker to be gone
TASK = """
import os, time
from pathlib import Path

import seqio
import tensorflow as tf

HERE = Path(__file__).parent


def to_targets(lines):
    def waiting():
        while os.environ.get("WORKER") and not (HERE / "go on").exists():
            (HERE / f"waits.{os.environ['WORKER']}").touch()
            time.sleep(0.05)
        return 0

    def target(line):
        with tf.control_dependencies([tf.py_function(waiting, [], tf.int64)]):
            return {"targets": tf.identity(line)}

    return lines.map(target)


seqio.TaskRegistry.add(
    "in_several_files",
    source=seqio.TextLineDataSource({"train": str(HERE / "part-*.txt")}),
    preprocessors=[to_targets, seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder()],
    output_features={"targets": seqio.Feature(seqio.ByteVocabulary(extra_ids=125), add_eos=True)},
)
"""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, dict[str, subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, each a process with one thread: its address, and the workers by name."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))  # a free port
        port = listening.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    paths = os.pathsep.join([str(REPOSITORY), str(folder)])
    environment = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    started: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command], env=environment | {"WORKER": name}, cwd=folder,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            started[name] = process

        start("scheduler", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        for name in ("one", "two"):
            own = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(folder / name)]
            start(name, "worker", address, "--name", name, *own)
        yield address, started


def test_a_cluster_that_loses_a_worker_gives_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "many_files.py").write_text(TASK)
    for number in range(4):
        (tmp_path / f"part-{number}.txt").write_text(sentences(40, seed=number))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("many_files")
    local.cache_task(seqio.TaskRegistry.get("in_several_files"), tmp_path / "local", "make cache", lambda *_: None)
    waits, over = tmp_path / "waits.one", threading.Event()
    with cluster(tmp_path) as (address, workers):

        def kill_one_at_work() -> None:
            while not waits.exists() and workers["one"].poll() is None and not over.wait(0.05):
                pass
            workers["one"].send_signal(signal.SIGKILL)
            workers["one"].wait()
            (tmp_path / "go on").touch()

        thread = threading.Thread(target=kill_one_at_work)
        thread.start()
        beam = [f"--dask_client_address={address}", "--dask_npartitions=4"]
        try:
            cache_task(
                "in_several_files", cache_dir=tmp_path / "cluster", data_dir=tmp_path / "data", log=lambda line: None,
                module_import=["many_files"], runner="DaskRunner", beam_options=beam,
            )  # fmt: skip
        finally:
            over.set()
            thread.join()
        assert waits.exists(), "it was killed before it worked"
        assert workers["one"].returncode == -signal.SIGKILL
        assert workers["two"].poll() is None
    distributed = tmp_path / "cluster" / "in_several_files"
    names = {path.name for path in (tmp_path / "local").iterdir()}
    assert {path.name for path in distributed.iterdir()} == names | {"t5xpg_identity.json"}, "nothing of Beam's is left"
    assert len(names) == 64 + 2 + 1
    for path in (tmp_path / "local").glob("*-of-00064"):
        assert (distributed / path.name).read_bytes() == path.read_bytes(), path.name
