"""Checkpoints that are not what was written: found, named, moved aside, and never used."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.optim.state import TrainState
from t5xpg.run.checkpoint import folders
from t5xpg.run.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from t5xpg.run.checkpoint.folders import DIGESTS
from tests.refusals import assert_named, refused
from tests.run.test_checkpoints import abstract
from tests.workplace import contents

KEEP_ALL = CheckpointConfig(keep=None)


def make_state(step: int) -> TrainState:
    weights = jnp.asarray(np.random.default_rng(step).normal(size=(40, 30)), jnp.float32)
    return TrainState(step=jnp.int32(step), params={"layer": {"kernel": weights}}, opt_state=(weights + 1,))


def write(folder: Path, *steps: int) -> None:
    with Checkpointer(folder, KEEP_ALL) as checkpoints:
        for step in steps:
            checkpoints.save(step, make_state(step), {"p": np.arange(5)}, {"at": step}, {"validation/loss": 1 / step})


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Looks at everything again, as another process does, which does not know what this one found whole."""

    def forgotten() -> None:
        monkeypatch.setattr(folders, "_whole_folders", {})

    forgotten()
    return forgotten


def change(path: Path, content: bytes | None) -> None:
    """As a disk changes a file: its times stay."""
    if content is None:
        path.unlink()
        return
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def ways_to_damage(content: bytes) -> Iterator[bytes | None]:
    """Removed, emptied, longer by a byte, and a bit flipped at its begin and its end."""
    yield None
    if content:
        yield b""
        yield content + b"\0"
        for place in {0, len(content) - 1}:
            flipped = bytearray(content)
            flipped[place] ^= 1 << (place % 8)
            yield bytes(flipped)


def test_any_damage_to_any_file_is_found_and_named(tmp_path, capfd, forget):
    write(tmp_path, 1, 2)
    folder = tmp_path / "2"
    files = sorted(files_of(folder))
    assert {"_CHECKPOINT_METADATA", DIGESTS, "manifest.ocdbt", "metadata", "metrics"} <= {path.name for path in files}
    assert len(files) > 20
    with Checkpointer(tmp_path, KEEP_ALL, read_only=True) as checkpoints:
        for path in files:
            whole, stat = path.read_bytes(), path.stat()
            for content in ways_to_damage(whole):
                forget()
                change(path, content)
                assert checkpoints.latest() == 1, (path, content)
                assert_named(capfd.readouterr().err, ["step 2", path.relative_to(folder).as_posix(), "step 1"])
                path.write_bytes(whole)
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        forget()
        assert checkpoints.latest() == 2
        assert capfd.readouterr() == ("", "")
        forget()
        (folder / "params" / "more").touch()
        assert checkpoints.latest() == 1
        assert "params/more" in capfd.readouterr().err


def test_a_run_goes_on_from_the_last_whole_one(tmp_path, capfd, forget):
    config = CheckpointConfig(keep=2)
    write(tmp_path, 1, 2, 3, 4)
    for step, name in ((4, "params/_METADATA"), (3, "meta/metadata")):
        change(tmp_path / str(step) / name, b"x")
    kept = contents(tmp_path / "4")
    with Checkpointer(tmp_path, config) as checkpoints:
        assert checkpoints.latest() == 2
        said = capfd.readouterr().err
        assert_named(said, [f"{tmp_path}/damaged/{step}" for step in (3, 4)])
        assert_named(said, ["params/_METADATA", "meta/metadata", "step 2"])
        assert contents(tmp_path / "damaged" / "4") == kept
        assert checkpoints.steps() == [1, 2]
        state, _, meta = checkpoints.restore(checkpoints.latest(), abstract(make_state(2)))
        assert (int(state.step), meta) == (2, {"at": 2})
        assert capfd.readouterr().err == ""  # said once
        # The steps are reached again; those moved aside count for nothing.
        assert checkpoints.save(3, make_state(3), {}, {"again": True})
        assert checkpoints.save(4, make_state(4), {}, {"again": True})
        assert (checkpoints.steps(), checkpoints.best()) == ([2, 3, 4], 2)
    forget()
    change(tmp_path / "4" / DIGESTS, None)
    with Checkpointer(tmp_path, config) as checkpoints:
        assert checkpoints.latest() == 3
        assert f"{tmp_path}/damaged/4-2" in capfd.readouterr().err
    assert sorted(path.name for path in (tmp_path / "damaged").iterdir()) == ["3", "4", "4-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "damaged"]


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("read_only", [False, True])
def test_where_none_is_whole_nothing_is_started_over(tmp_path, capfd, read_only):
    write(tmp_path, 1, 2)
    for step in (1, 2):
        change(tmp_path / str(step) / "params" / "_METADATA", b"")
    with Checkpointer(tmp_path, KEEP_ALL, read_only=read_only) as checkpoints:
        for use in (checkpoints.latest, checkpoints.meta):
            with refused("2: params/_METADATA", "1: params/_METADATA", "rm -r "):
                use()
        assert checkpoints.steps() == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert capfd.readouterr() == ("", "")


def test_a_certain_step_that_is_damaged_is_refused(tmp_path):
    write(tmp_path, 1, 2)
    change(tmp_path / "1" / "data" / "_METADATA", b"{}")
    like = abstract(make_state(1))
    with Checkpointer(tmp_path, KEEP_ALL) as checkpoints:
        for use in (
            lambda: checkpoints.restore(1, like),
            lambda: checkpoints.restore_params(1, like.params),
            lambda: checkpoints.meta(1),
        ):
            with refused("data/_METADATA", "[2]"):
                use()
        assert checkpoints.meta() == {"at": 2}
    assert (tmp_path / "1").is_dir()


def test_one_that_its_run_removes_while_it_is_read(tmp_path, monkeypatch):
    write(tmp_path, 1, 2)
    with Checkpointer(tmp_path, KEEP_ALL, read_only=True) as checkpoints:
        restore = checkpoints._orbax.restore

        def late(path, **items):
            shutil.rmtree(path)
            return restore(path, **items)

        monkeypatch.setattr(checkpoints._orbax, "restore", late)
        with refused(str(tmp_path / "1"), "while it was read"):
            checkpoints.restore_params(1, abstract(make_state(1)).params)


def test_only_what_is_used_is_read_and_that_once(tmp_path, monkeypatch, forget):
    write(tmp_path, 1, 2, 3)
    forget()
    hashed: list[Path] = []
    digest = folders.sha256_of_file
    monkeypatch.setattr(folders, "sha256_of_file", lambda path: hashed.append(path) or digest(path))
    for _ in range(2):
        with Checkpointer(tmp_path, KEEP_ALL) as checkpoints:
            assert checkpoints.latest() == 3
            checkpoints.restore(None, abstract(make_state(3)))
            assert checkpoints.meta() == {"at": 3}
    assert sorted(hashed) == sorted(path for path in files_of(tmp_path / "3") if path.name != DIGESTS)


def test_the_best_is_known_without_the_damaged(tmp_path):
    write(tmp_path, 1, 2, 3)  # 3 has the lowest loss
    change(tmp_path / "3" / "metrics" / "metrics", b"[")
    change(tmp_path / "2" / "metrics" / "metrics", b'{"validation/loss": "x"}')
    with Checkpointer(tmp_path, KEEP_ALL, read_only=True) as checkpoints:
        assert checkpoints.best() == 1


def test_a_folder_with_a_steps_name_that_holds_no_checkpoint(tmp_path, capfd):
    write(tmp_path, 1)
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "mine").write_text("precious")
    with Checkpointer(tmp_path, KEEP_ALL) as checkpoints:
        assert checkpoints.latest() == 1
    assert_named(capfd.readouterr().err, ["step 5", "SHA256SUMS"])
    assert (tmp_path / "damaged" / "5" / "mine").read_text() == "precious"
