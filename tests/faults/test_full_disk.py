"""A disk without room, under every command that writes: one message, nothing lost, nothing left lying about."""

import re
import shutil
from pathlib import Path

import pytest

from tests.refusals import assert_named
from tests.small_disk import Ended, namespace, run_on_small_disk
from tests.workplace import Workplace, sentences

pytestmark = pytest.mark.process

KIB = 1024
TASK = "small_span_corruption"
EXPERIMENT = "DISK/experiments/small/small.gin"
NO_ROOM = ("No space left on device", "File too large", "There is no room ")
# What programs note for themselves beside their files: locks, remembered digests, the log of caching that failed.
NOTES = re.compile(r"(.*/)?(\.t5xpg/.*|\.t5xpg_digests\.json|\.([^/]*\.)?lock|[^/]*\.log)")


@pytest.fixture(scope="module")
def content(workplace: Workplace, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lies on the disk before it is full: data, a cache, and a run of which the first checkpoint is left."""
    folder = tmp_path_factory.mktemp("content")
    for part in (f"cache/{TASK}", "data/small"):
        shutil.copytree(workplace.folder / part, folder / part)
    experiment = folder / "experiments" / "small" / "small.gin"
    experiment.parent.mkdir(parents=True)
    shutil.copy(workplace.experiment, experiment)
    (experiment.parent / "README.md").write_text("# small\n")
    run = shutil.copytree(pretrained, folder / "runs" / "small")
    for step in ("8", "12"):
        shutil.rmtree(run / "checkpoints" / step)
    return folder


def run(content: Path, scratch: Path, *arguments: str, room: int, largest: int) -> Ended:
    place = Workplace(scratch / "disk")
    command = place.command(*(argument.replace("DISK", str(place.folder)) for argument in arguments))
    return run_on_small_disk(content, command, place.environment, room=room, largest=largest, scratch=scratch)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_nothing_happened(content: Path, ended: Ended, *, may_change: str = "nothing") -> None:
    """One message, the earlier files as they were, no other one; but below the folder `may_change`."""
    assert ended.code == 1, ended.output
    assert_named(ended.output, [])
    (error,) = (line for line in ended.output.splitlines() if line.startswith("t5xpg: error: "))
    assert any(words in error for words in NO_ROOM), error

    def kept(folder: Path) -> dict[str, bytes]:
        names = {name: held for name, held in files(folder).items() if not NOTES.fullmatch(name)}
        return {name: held for name, held in names.items() if not name.startswith(may_change)}

    before, after = kept(content), kept(ended.disk)
    assert sorted(after) == sorted(before)
    assert [name for name in before if after[name] != before[name]] == []


def test_export(content: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text(sentences(3000, seed=3))
    for number, name in enumerate(("other", "small")):
        arguments = ("data", name, "--force", f"--files=train='{tmp_path / 'more.txt'}'")
        ended = run(content, tmp_path / str(number), *arguments, room=200 * KIB, largest=100 * KIB)
        assert_nothing_happened(content, ended)


def test_cache(content: Path, tmp_path: Path) -> None:
    ended = run(content, tmp_path, "cache", TASK, "--force", room=60 * KIB, largest=10 * KIB)
    assert_nothing_happened(content, ended)
    assert "/disk/cache" in ended.output


def test_checkpoint(content: Path, tmp_path: Path) -> None:
    if not namespace():
        # A limit on files has to spare the data's position, which is larger than the small model.
        wide = ("train", EXPERIMENT, "--run=wide", "--gin.encoder_decoder.T5Config.mlp_dim=8192")
        ended = run(content, tmp_path / "limited", *wide, room=0, largest=1000 * KIB)
        assert_nothing_happened(content, ended, may_change="runs/wide")
        assert "A checkpoint cannot be written into" in ended.output
        assert list((ended.disk / "runs" / "wide" / "checkpoints").iterdir()) == []
        return
    ended = run(content, tmp_path / "full", "train", EXPERIMENT, room=350 * KIB, largest=0)
    assert_nothing_happened(content, ended, may_change="runs/small")
    assert "A checkpoint cannot be written into" in ended.output
    checkpoints = Path("runs", "small", "checkpoints")
    assert [path.name for path in (ended.disk / checkpoints).iterdir()] == ["4"]
    assert files(ended.disk / checkpoints / "4") == files(content / checkpoints / "4")
    # With room it goes on.
    printed = Workplace(ended.disk).run("train", str(ended.disk / "experiments" / "small" / "small.gin"))
    assert "continues after step 4" in printed
    assert (ended.disk / checkpoints / "12").is_dir()


def test_report(content: Path, tmp_path: Path) -> None:
    # Of its files each is written whole or not at all: the first is small enough for what is left.
    ended = run(content, tmp_path, "report", EXPERIMENT, room=12 * KIB, largest=1 * KIB)
    assert_nothing_happened(content, ended, may_change="experiments/small/results.json")


@pytest.mark.parametrize("room", [20, 200])
def test_export_of_a_model(content: Path, tmp_path: Path, room: int) -> None:
    arguments = ("export", EXPERIMENT, "--run=DISK/runs/small", "--output=DISK/exported")
    ended = run(content, tmp_path, *arguments, room=room * KIB, largest=room * KIB)
    assert_nothing_happened(content, ended)


def test_site(content: Path, tmp_path: Path) -> None:
    ended = run(content, tmp_path, "site", "--output=DISK/site", room=300 * KIB, largest=20 * KIB)
    assert_nothing_happened(content, ended)
    assert "the site" in ended.output
