"""A proof of exact resume of a real run, and that every kind of difference would be noticed."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from t5xpg.base.files import read_json
from t5xpg.base.phases import PHASES
from t5xpg.experiment import config
from t5xpg.run.batch_trail import UNKNOWN
from t5xpg.study.proofs.comparison import compare, compare_positions, first_difference, leftovers, read_checkpoint
from tests.conftest import PROGRAMS
from tests.refusals import assert_named
from tests.workplace import Workplace, assert_same_run

pytestmark = pytest.mark.process

STEPS = 12


@pytest.fixture(scope="module")
def proof(workplace: Workplace) -> tuple[Path, str]:
    """The folder of a proof with a kill in each phase, and what was printed."""
    folder = workplace.folder / "proof"
    place = dataclasses.replace(
        workplace, variables={PROGRAMS: str(workplace.folder / "programs")}
    )  # kills may tear some
    command = ("prove-resume", str(workplace.experiment), "--kills=5", f"--run={folder}")
    with place.start(*command) as prover:
        printed, _ = prover.communicate()  # eight starts: no limit of time would suit every machine
    assert prover.returncode == 0, printed
    return folder, printed


def test_a_run_killed_in_each_phase_is_the_same_run(proof: tuple[Path, str]) -> None:
    folder, printed = proof
    receipt = read_json(folder / "receipt.json")
    assert (receipt["proven"], receipt["differences"]) == (True, [])
    kills = receipt["kills"]
    assert all(kills["by_phase"][name] >= 1 for name in PHASES)
    assert kills["dealt"] == len(receipt["list_of_kills"]) == sum(kills["by_phase"].values()) < receipt["starts"]
    assert receipt["equal"]["batches.sha256"]["lines"] == STEPS
    assert {"metrics.jsonl", "parameters", "optimiser", "data position", "meta"} <= receipt["equal"].keys()
    assert (receipt["devices"]["platform"], bool(receipt["versions"]["jax"])) == ("cpu", True)
    assert_same_run(folder / "killed", folder / "unbroken", STEPS)
    assert_named(printed, ["every resume was exact", receipt["equal"]["parameters"]["sha256"]])


def differences(proof: tuple[Path, str], killed: Path, unbroken: Path | None = None) -> list[str]:
    loaded = config.load(str(Workplace(proof[0].parent).experiment))
    return compare(loaded, unbroken or proof[0] / "unbroken", killed, STEPS).differences


@pytest.fixture
def copy(proof: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the unbroken run, for a test to change."""
    return Path(shutil.copytree(proof[0] / "unbroken", tmp_path / "killed"))


def test_folders_that_are_not_there_or_should_not_be(proof: tuple[Path, str], copy: Path) -> None:
    assert differences(proof, copy) == []
    folder = copy / "checkpoints"
    for left in ("8.orbax-checkpoint-tmp", "8.unfinished", "damaged", f"{STEPS}/x.tmp"):
        assert leftovers(copy, proof[0] / "unbroken") == []
        (folder / left).mkdir()
        (said,) = differences(proof, copy)
        assert str(folder / left) in said
        (folder / left).rmdir()
    first, *others = sorted(int(path.name) for path in folder.iterdir())
    for step, named in ((first, [str(others), str([first, *others])]), (STEPS, [str(folder / str(STEPS))])):
        shutil.rmtree(folder / str(step))
        (said,) = differences(proof, copy)
        assert_named(said, named)


@pytest.mark.parametrize("name", ["metrics.jsonl", "batches.sha256"])
def test_another_line_is_found(proof: tuple[Path, str], copy: Path, name: str) -> None:
    lines = (copy / name).read_text().splitlines(keepends=True)
    changed = lines[2].replace("1", "2").replace("0", "1")
    assert changed != lines[2]
    (copy / name).write_text("".join([*lines[:2], changed, *lines[3:]]))
    (said,) = differences(proof, copy)
    assert_named(said, [f"{copy / name}, line 3", changed.strip()[:300], lines[2].strip()[:300]])
    (copy / name).write_text("".join(lines[:-1]))
    (said,) = differences(proof, copy)
    assert f"{copy / name}, line {len(lines)}" in said


@pytest.mark.parametrize("change", [lambda lines: lines[:-1], lambda lines: [f"{UNKNOWN}\n", *lines[1:]]])
def test_hashes_that_are_lacking_are_not_the_same(proof: tuple[Path, str], copy: Path, change: Any) -> None:
    """Though both runs lack them."""
    other = Path(shutil.copytree(copy, copy.with_name("other")))
    for run in (copy, other):
        (run / "batches.sha256").write_text("".join(change((run / "batches.sha256").read_text().splitlines(True))))
    (said,) = differences(proof, copy, unbroken=other)
    assert str(other / "batches.sha256") in said


def test_one_bit_in_an_array_is_found(proof: tuple[Path, str], copy: Path) -> None:
    """Of the optimiser; what is said of arrays is below."""
    folder = copy / "checkpoints" / str(STEPS) / "optimizer"
    with ocp.StandardCheckpointer() as orbax:
        tree = orbax.restore(folder)
        leaf = max(jax.tree.leaves(tree), key=np.size)
        changed = np.array(leaf)
        changed.reshape(-1).view(np.uint8)[0] ^= 1
        shutil.rmtree(folder)
        orbax.save(folder, jax.tree.map(lambda one: changed if one is leaf else one, tree))
    (said,) = differences(proof, copy)
    assert_named(said, [str(folder), f"1 of {changed.size:,} values"])


def test_the_same_position_written_in_another_way_is_the_same(
    proof: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that of another step is another one: the batches that follow decide."""
    place = Workplace(proof[0].parent)
    place.enter(monkeypatch)
    runs = proof[0] / "unbroken" / "checkpoints"
    one, other = (read_checkpoint(runs / step)["data"] for step in ("12", "8"))
    loaded = config.load(str(place.experiment))
    assert compare_positions(loaded, one, dict(one)) == ("byte for byte", None)
    assert compare_positions(loaded, one, {**one, "remark": one["stream"]}) == ("the next 8 batches", None)
    assert "number 1" in (compare_positions(loaded, one, other)[1] or "")


def test_the_first_difference_of_arrays() -> None:
    ones = np.ones((2, 3), np.float32)
    other = ones.copy()
    other[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert first_difference({"a": ones}, {"a": ones.copy()}) is None
    zero = np.zeros((), np.float32)
    for unbroken, killed, *named in (
        ({"a": ones}, {}, "a", "unbroken"),
        ({}, {"a": ones}, "a", "killed"),
        ({"a": ones}, {"a": ones.astype(np.int32)}, "float32[2, 3]", "int32[2, 3]"),
        ({"a": ones}, {"a": other}, "a differs in 1 of 6 values", "[1, 2]"),
        # zeros of other signs, and numbers that are not: bits count
        ({"a": zero}, {"a": -zero}, "a differs in 1 of 1 values", "[]"),
    ):
        assert_named(first_difference(unbroken, killed) or "", named)
    assert first_difference({"a": zero * np.nan}, {"a": zero * np.nan}) is None
