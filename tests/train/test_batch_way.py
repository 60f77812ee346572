"""The files that hand a batch on, from its source to the update: as many as CONTRIBUTING.md names, in that order."""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from t5xpg.base import paths
from t5xpg.data import data_process
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import worker
from t5xpg.data.stream.client import DataService, Stream
from t5xpg.data.text.export import export_dataset
from t5xpg.distributed import MeshConfig, batch_sharding, make_mesh
from t5xpg.distributed.host_rows import HostRows
from t5xpg.models.config import T5Config
from t5xpg.models.encoder_decoder import EncoderDecoderModel
from t5xpg.models.losses import LossConfig
from t5xpg.optim.optimizers import AdamW
from t5xpg.optim.state import TrainState, abstract
from t5xpg.optim.step import make_train_step
from t5xpg.run.best import Best
from t5xpg.train.loop import RunState
from tests.small_models import ONE_LAYER, SIZES
from tests.train.test_loop import Noted
from tests.workplace import sentences

LENGTHS = {"inputs": 32, "targets": 16}
MODEL = EncoderDecoderModel(T5Config(**{**SIZES, **ONE_LAYER, "vocab_size": 384}))


def is_batch(value: Any) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(each, dict) and hasattr(each.get("decoder_target_tokens"), "shape") for each in values)


class Way:
    """Notes the files of the package in which a batch is returned or received, in the order of the first time."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def note(self, frame: FrameType | None) -> None:
        name = frame.f_code.co_filename if frame is not None else ""
        if name.startswith(str(paths.PACKAGE)):
            file = f"t5xpg/{Path(name).relative_to(paths.PACKAGE).as_posix()}"
            if file not in self.files:
                self.files.append(file)

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and is_batch(argument):
            self.note(frame)
            self.note(frame.f_back)  # who gets it
        elif (
            event == "call"
            and frame.f_code.co_filename.endswith("optim/step.py")
            and is_batch(frame.f_locals.get("batch"))
        ):
            self.note(frame)

    def followed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of another thread, with a profile while it runs."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            sys.setprofile(self.profile)
            try:
                return function(*arguments, **keywords)
            finally:
                sys.setprofile(None)

        return run


@pytest.fixture
def data_process_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data process as a thread, so that one profile sees both sides of the connection."""

    def answer(connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError):
            connection.recv()  # where modules are
            data_process.answer(connection.recv, connection, lambda report: worker.Calls().calls)

    def start(command: list[str], *, pass_fds: list[int], **_: Any) -> Any:
        connection: Connection = Connection(os.dup(pass_fds[0]))
        threading.Thread(target=answer, args=(connection,), daemon=True).start()
        return SimpleNamespace(pid=0, poll=lambda: None, wait=lambda timeout=None: 0)

    monkeypatch.setattr(data_process, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))
    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, name, lambda count: None)  # it may be in use here


@pytest.mark.usefixtures("data_process_in_this_one")
def test_a_batch_crosses_few_files_in_one_direction(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = own_place / "text.txt"
    text.write_text(sentences(50, seed=1))
    export_dataset("small", data_dir=own_place / "data", files={"train": [text], "validation": [text]})
    config = DatasetConfig("small_span_corruption", LENGTHS, batch_size=4, use_cached=False, seed=1)
    optimizer = AdamW(0.01)
    step = make_train_step(MODEL, optimizer, LossConfig(), seed=0, token_bytes=np.ones(384, np.int32))

    def zeros(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)

    def update(state: TrainState, batch: Any) -> Any:
        """The step traced, which is to go its way, and not compiled."""
        return zeros(jax.eval_shape(step, state, batch))

    place = HostRows.of_all(4).to_global_arrays
    sharding = batch_sharding(make_mesh(MeshConfig()))
    way = Way()
    monkeypatch.setattr(worker.Calls, "call_opened", way.followed(worker.Calls.call_opened))
    monkeypatch.setattr(Stream, "_read", way.followed(Stream._read))
    with DataService() as service:
        stream = service.open(config)
        sys.setprofile(way.profile)
        try:
            at = RunState(0, zeros(abstract(MODEL, optimizer)), Best(None))
            Noted().loop(at, stream, lambda batch: place(batch, sharding), update, until=1)
        finally:
            sys.setprofile(None)
    assert at.step == 1
    assert way.files == documented()


def documented() -> list[str]:
    text = Path("CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("The way of a batch")[2].partition("\n## ")[0]
    return list(dict.fromkeys(re.findall(r"t5xpg/[\w/]+\.py", section)))
