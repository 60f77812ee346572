"""Experiments that are ready to launch: each passes its check for its devices, which are simulated, on small texts."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from t5xpg import commands
from t5xpg.base import paths
from t5xpg.data.text.sources import HuggingFace
from t5xpg.experiment import config, making
from tests.refusals import assert_named
from tests.small_tokenizers import sentencepiece_model
from tests.workplace import REPOSITORY, Workplace, make_hub, sentences

BASE, SMALL = "t5_1_1_base_c4", "byt5_small_wikitext_gpu"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment with the texts of both experiments exported, C4 from a copy in the hub's layout."""
    folder = tmp_path_factory.mktemp("launch")
    environment = {f"T5XPG_{name}_DIR": str(folder / name.lower()) for name in ("DATA", "CACHE", "RUNS")}
    c4 = make_hub(folder / "c4", "en", train=150, validation=20)
    (folder / "wiki.txt").write_text(sentences(200, seed=1))
    model = sentencepiece_model(folder / "spiece.model")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        hub = HuggingFace(str(c4), "en", None, streamed=True)
        making.export_dataset("c4", hub=hub, max_bytes=20_000)
        making.make_vocabulary("c4", Path(model), name="t5")
        making.export_dataset("wikitext", files={"train": [folder / "wiki.txt"], "validation": [folder / "wiki.txt"]})
    return environment


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ((SMALL, "--device=l4"), ["20.6 GiB of a l4"], 0),
        ((BASE, "--device=a100-40gb"), ["34.3 GiB of a a100-40gb"], 0),
        ((BASE, "--device=l4", "--gin.NUM_MICROBATCHES=1"), ["20.6 GiB", "Lower BATCH_SIZE"], 1),
        ((SMALL, "--device=a100-80gb", "--mesh=data=4", "--gin.NUM_MICROBATCHES=4"), ["data 4 x", "a100-80gb"], 0),
        ((BASE, "--device=a100-80gb", "--devices=8", "--gin.NUM_MICROBATCHES=1"), ["data 8 x", "a100-80gb"], 0),
        ((BASE, "--device=tpu-v5e", "--devices=16", "--gin.NUM_MICROBATCHES=1"), ["data 16 x", "tpu-v5e"], 0),
        (("byt5_tiny", "--device=cpu", "--mesh=data=2"), ["data 2 x", "GiB are there"], 0),
    ],
)
def test_the_check_for_its_devices(
    places: dict[str, str], arguments: tuple[str, ...], words: list[str], code: int
) -> None:
    assert_named(Workplace(REPOSITORY).run("check", *arguments, code=code, **places), words)


@pytest.mark.process
def test_the_slurm_script_trains_it(tmp_path: Path) -> None:
    """With an `srun` that only says what it was called with."""
    script = paths.EXPERIMENTS / BASE / "slurm.sh"
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$XLA_PYTHON_CLIENT_MEM_FRACTION"; printf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    said = subprocess.check_output(["sh", str(script)], env={**os.environ, "PATH": path}, text=True)
    share, python, dash_m, program, *arguments = said.split()
    assert (share, python, dash_m, program) == ("0.92", ".venv/bin/python", "-m", "t5xpg")
    overrides = [text.removeprefix("--gin.") for text in arguments if text.startswith("--gin.")]
    options = commands.parser().parse_args([text for text in arguments if not text.startswith("--gin.")])
    assert options.command == "train"
    experiment = config.load(options.experiment, overrides).experiment
    assert experiment.num_microbatches == 1
    match = re.search(r"gpus-per-node=(\d+)", script.read_text())
    assert match
    assert experiment.train_dataset.batch_size % int(match[1]) == 0
