"""Checkpoints: exact, safe against interruption, few, and clear about what does not fit."""

import contextlib
import dataclasses
import errno
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5xpg.base.errors import UserError
from t5xpg.distributed import MeshConfig, make_mesh, replicated, with_shardings
from t5xpg.optim.state import TrainState
from t5xpg.run.best import BestMetric
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from tests.refusals import assert_named, refused

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def make_state(step: int = 0, size: int = 4) -> TrainState:
    """Odd values: denormal, infinite, not a number, negative zero."""
    generator = np.random.default_rng(step)
    params = {
        "encoder": {"layers_0": {"kernel": jnp.asarray(generator.normal(size=(3, size)), jnp.float32)}},
        "scale": jnp.asarray([1e-42, np.inf, np.nan, -0.0], jnp.float32),
    }
    return TrainState(step=jnp.int32(step), params=params, opt_state=OPTIMIZER.init(params))


def abstract(state: TrainState) -> TrainState:
    sharding = replicated(make_mesh(MeshConfig(devices=1)))
    return with_shardings(state, jax.tree.map(lambda leaf: sharding, state))


def save_and_wait(checkpoints: Checkpointer, step: int, state: TrainState) -> None:
    checkpoints.save(step, state, {}, {})
    checkpoints.wait()


def bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_an_average_is_what_a_reader_gets_and_training_goes_on_without_it(tmp_path):
    state = dataclasses.replace(make_state(7), average=make_state(8).params)
    with Checkpointer(tmp_path, CheckpointConfig()) as checkpoints:
        save_and_wait(checkpoints, 7, state)
        back = checkpoints.restore(7, abstract(state))[0]
        params = checkpoints.restore_params(7, abstract(state).params)[0]
    assert bits(back) == bits(state)
    assert bits(params) == bits(state.average)


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    state, folder = make_state(7), tmp_path / "a folder" / "checkpoints"
    data = {
        "iterator": np.frombuffer(bytes(range(256)), np.uint8),
        "batch/encoder_input_tokens": np.arange(6, dtype=np.int32).reshape(2, 3),
        "nothing": np.zeros((0, 4), np.int64),
        "waited": np.float64(0.1),
    }
    meta = {"loss": 0.1 + 0.2, "names": ["ä", None, True], "window": {"steps": 3}}
    with Checkpointer(folder, CheckpointConfig()) as checkpoints:
        assert checkpoints.latest() is None
        assert checkpoints.save(7, state, data, meta)
        assert not checkpoints.save(7, state, {}, {"again": True}), "a step is written once"
        assert checkpoints.latest() == 7
    with Checkpointer(folder, CheckpointConfig()) as checkpoints:
        restored, data_back, meta_back = checkpoints.restore(None, abstract(state))
        params, _ = checkpoints.restore_params(7, abstract(state).params)
        assert checkpoints.meta() == meta_back == meta
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert (bits(restored), bits(params)) == (bits(state), bits(state.params))
    assert [leaf.dtype for leaf in jax.tree.leaves(restored)] == [leaf.dtype for leaf in jax.tree.leaves(state)]
    assert data_back.keys() == data.keys()
    for name, array in data.items():
        assert data_back[name].dtype == array.dtype
        np.testing.assert_array_equal(data_back[name], array)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path):
    # The arrays that are being written are given away to the next update.
    state = jax.jit(lambda: make_state(1, size=400_000))()
    expected = bits(jax.tree.map(lambda leaf: np.array(leaf, copy=True), state))
    update = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    like = abstract(state)
    with Checkpointer(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, {}, {})
        for _ in range(5):
            state = jax.block_until_ready(update(state))
        restored, _, _ = checkpoints.restore(1, like)
    assert bits(restored) == expected


def test_the_last_and_the_best_stay(tmp_path):
    losses = {5: float("nan"), 10: 3.0, 20: 1.0, 30: 2.0, 40: None, 50: 1.5, 60: float("nan")}
    with Checkpointer(tmp_path, CheckpointConfig(keep=2)) as checkpoints:
        for step, loss in losses.items():
            metrics = None if loss is None else {"validation/loss": loss, "other": 0.0}
            checkpoints.save(step, make_state(step), {}, {}, metrics)
            assert checkpoints.latest() == step
            assert (checkpoints.best() is None) == (step == 5)
        assert (checkpoints.best(), checkpoints.steps()) == (20, [20, 50, 60])
    with Checkpointer(tmp_path, CheckpointConfig(keep=1)) as checkpoints:
        assert checkpoints.best() == 20
        checkpoints.save(70, make_state(70), {}, {}, {"validation/loss": 0.5})
        assert (checkpoints.best(), checkpoints.steps()) == (70, [70])
    with Checkpointer(tmp_path, CheckpointConfig(keep=None)) as checkpoints:
        for step in (80, 90, 100):
            checkpoints.save(step, make_state(step), {}, {}, None)
        assert checkpoints.steps() == [70, 80, 90, 100]


def test_the_best_may_be_the_highest_and_is_the_first_of_equals(tmp_path):
    config = CheckpointConfig(keep=1, best=BestMetric("task/em", "max"), asynchronous=False)
    with Checkpointer(tmp_path, config) as checkpoints:
        for step, value in enumerate((1.0, 3.0, 3.0, 2.0), start=1):
            checkpoints.save(step, make_state(step), {}, {}, {"task/em": value, "validation/loss": -value})
        assert (checkpoints.best(), checkpoints.steps()) == (2, [2, 4])


def test_a_passing_checkpoint_leaves_no_trace(tmp_path):
    """Whether a run was stopped between its checkpoints or not, the same ones are there at the end."""
    kept = []
    for name, resume_only in (("unbroken", ()), ("stopped", (3, 5, 7))):
        with Checkpointer(tmp_path / name, CheckpointConfig(keep=2, asynchronous=False)) as checkpoints:
            for step in sorted({2, 4, 6, 8, *resume_only}):
                metrics = {"validation/loss": 0.0 if step in resume_only else float(step)}
                checkpoints.save(step, make_state(step), {}, {}, metrics, resume_only=step in resume_only)
                assert checkpoints.latest() == step
                assert checkpoints.best() == 2
        kept.append(checkpoints.steps())
    assert kept == [[2, 6, 8], [2, 6, 8]]


def test_what_a_kill_kept_from_being_removed_goes(tmp_path):
    with Checkpointer(tmp_path, CheckpointConfig(keep=9, asynchronous=False)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_state(step), {}, {}, {"validation/loss": float(step)})
    with Checkpointer(tmp_path, CheckpointConfig(keep=1)) as checkpoints:
        assert checkpoints.steps() == [1, 2, 3]
        checkpoints.tidy()
        assert checkpoints.steps() == [1, 3]


def test_what_differs_is_named(tmp_path):
    state, other = make_state(1), make_state(1, size=5)
    other.params["norm"] = jnp.zeros(2)
    kernel, differs = "encoder/layers_0/kernel", "is float32[3, 4] in the checkpoint, float32[3, 5] now"
    with Checkpointer(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, {}, {})
        with pytest.raises(UserError) as error:
            checkpoints.restore(None, abstract(other))
        assert_named(str(error.value), [f"params/{kernel} {differs}", "params/norm", "float32[2]"])
        assert f"optimizer/state/1/0/mu/{kernel} {differs}" in str(error.value)
        assert "scale" not in str(error.value)
        with refused("params/norm", "float32[2]"):
            checkpoints.restore_params(None, abstract(other).params)


def test_what_is_not_there_is_said(tmp_path):
    state = make_state(1)
    with refused(str(tmp_path / "missing"), "Train first"):
        Checkpointer(tmp_path / "missing", CheckpointConfig(), read_only=True)
    with Checkpointer(tmp_path, CheckpointConfig()) as checkpoints:
        with refused(str(tmp_path)):
            checkpoints.restore(None, abstract(state))
        checkpoints.save(1, state, {}, {})
        with refused("step 3", "[1]"):
            checkpoints.restore(3, abstract(state))
    with refused("CheckpointConfig.keep is 0"):
        Checkpointer(tmp_path, CheckpointConfig(keep=0))
    (tmp_path / "file").touch()
    for folder in ("file", "file/checkpoints"):
        with refused("be written", str(tmp_path / folder)):
            Checkpointer(tmp_path / folder, CheckpointConfig())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_disk_without_room_is_said(tmp_path, asynchronous, capfd):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpointer(tmp_path, CheckpointConfig(asynchronous=asynchronous)) as checkpoints:
        save_and_wait(checkpoints, 1, make_state(1))
        try:
            # Stands in for a full disk: no file may grow beyond a megabyte.
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
            with refused(str(tmp_path), "File too large"):
                save_and_wait(checkpoints, 2, make_state(2, size=1_000_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [path.name for path in tmp_path.iterdir()] == ["1"]
    with Checkpointer(tmp_path, CheckpointConfig()) as checkpoints:
        assert checkpoints.steps() == [1]
        assert bits(checkpoints.restore(1, abstract(make_state()))[0]) == bits(make_state(1))
        checkpoints.save(2, make_state(2), {}, {})
        assert checkpoints.steps() == [1, 2]
    assert capfd.readouterr() == ("", "")


def test_what_a_kill_leaves_is_removed_and_nothing_else(tmp_path):
    with Checkpointer(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, make_state(1), {}, {})
    left = ["2.unfinished", "2.unfinished.orbax-checkpoint-tmp", "3.orbax-checkpoint-tmp", "4.removed"]
    for name in (*left, "notes", "5.mine"):
        (tmp_path / name / "params").mkdir(parents=True)
        (tmp_path / name / "params" / "file").write_text("x")
    with Checkpointer(tmp_path, CheckpointConfig(), read_only=True) as checkpoints:
        assert checkpoints.steps() == [1]
    assert {path.name for path in tmp_path.iterdir()} == {"1", "notes", "5.mine", *left}
    with Checkpointer(tmp_path, CheckpointConfig()) as checkpoints:
        assert checkpoints.latest() == 1
    assert {path.name for path in tmp_path.iterdir()} == {"1", "notes", "5.mine"}


def test_a_checkpoint_that_cannot_be_removed_is_said_and_stays(tmp_path, monkeypatch, capfd):
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    config, rename = CheckpointConfig(keep=1, best=BestMetric(keep=False)), os.rename
    with Checkpointer(tmp_path, config) as checkpoints:
        save_and_wait(checkpoints, 1, make_state(1))
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", refuse)
            save_and_wait(checkpoints, 2, make_state(2))
        assert_named(capfd.readouterr().err, [f"{tmp_path}/1.removed", "Permission denied"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", lambda old, new: refuse() if str(new).endswith("removed") else rename(old, new))
            save_and_wait(checkpoints, 3, make_state(3))
        assert_named(capfd.readouterr().err, [f"{tmp_path}/2 ", "Permission denied"])
        assert checkpoints.steps() == [2, 3]
        save_and_wait(checkpoints, 4, make_state(4))
    with Checkpointer(tmp_path, config):
        assert [path.name for path in tmp_path.iterdir()] == ["4"]


def test_a_folder_without_permission(tmp_path):
    folder = tmp_path / "checkpoints"
    with Checkpointer(folder, CheckpointConfig()) as checkpoints:
        save_and_wait(checkpoints, 1, make_state(1))
        for doing, use in (
            ("written", lambda: save_and_wait(checkpoints, 2, make_state(2))),
            ("read", checkpoints.latest),
            ("written", lambda: Checkpointer(folder / "more", CheckpointConfig())),
        ):
            with as_a_user_without_rights(folder), refused(doing, str(folder), "Permission denied"):
                use()
            assert checkpoints.latest() == 1
    assert [path.name for path in folder.iterdir()] == ["1"]


@contextlib.contextmanager
def as_a_user_without_rights(folder: Path) -> Iterator[None]:
    """The block may do nothing in `folder`, also where the tests run as root, whom permissions do not bind."""
    folder.chmod(0)
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
