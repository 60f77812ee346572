"""Every command of the README runs, at a small size, in a copy of the checkout whose path has a space."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from t5xpg import config, paths, report
from tests.conftest import REPOSITORY, sentences

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
SMALL = (
    "--gin.TRAIN_STEPS=3 --gin.EVAL_STEPS=1 --gin.WARMUP_STEPS=1 --gin.BATCH_SIZE=4 --gin.DTYPE=float32 "
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 32} --gin.encoder_decoder.T5Config.num_encoder_layers=1 "
    "--gin.encoder_decoder.T5Config.num_decoder_layers=1 --gin.encoder_decoder.T5Config.emb_dim=32 "
    "--gin.encoder_decoder.T5Config.mlp_dim=32 --gin.encoder_decoder.T5Config.num_heads=2 "
    "--gin.encoder_decoder.T5Config.head_dim=16"
)
# Run by other means: the tests themselves and what they are part of.
NOT_RUN_HERE = {"make test", "make prove", "make lint"}
TARGETS_WITH_GIN = {"demo", "check", "train", "eval", "infer"}


def readme_commands() -> list[str]:
    """The commands in code blocks and in the table, in the order in which a reader meets them, each once."""
    found: list[str] = []
    for line in README.splitlines():
        if re.match(r"(\w+=\S+ )*make \w", line):
            found.append(line)
        elif line.startswith("| `make"):
            found += re.findall(r"`(make [^`]*)`", line.split(" | ")[0])
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git tracks, with this environment's packages, small texts, and what the README tells to write."""
    folder = tmp_path_factory.mktemp("a copy") / "t5xpg"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, tracked.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    (folder / ".venv").symlink_to(Path(os.environ.get("VIRTUAL_ENV") or REPOSITORY / ".venv"))
    text = folder / "texts"
    text.mkdir()
    (text / "train.txt").write_text(sentences(200, seed=1))
    (text / "validation.txt").write_text(sentences(40, seed=2))
    shutil.copy(text / "validation.txt", folder / "held_out.txt")
    (folder / "articles.jsonl").write_text(
        "".join(f'{{"text": "{line}"}}\n' for line in sentences(200, seed=3).splitlines())
    )
    subprocess.run(["gzip", "articles.jsonl"], cwd=folder, check=True)
    program = next(body for kind, body in BLOCKS if kind == "python")
    (folder / "my_tasks.py").write_text(program.replace("/path/", f"{text}/"))
    gin = next(body for _, body in BLOCKS if body.startswith("from __gin__"))
    (folder / "experiments" / "mine").mkdir()
    (folder / "experiments" / "mine" / "mine.gin").write_text(gin)
    run(folder, "make data DATASET=pydocs LIMIT=200")
    run(folder, 'make data DATASET=wikitext FILES="train=texts/train.txt validation=texts/validation.txt"')
    return folder


def run(folder: Path, command: str, code: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("T5XPG_", "PYTEST"))}
    environment.pop("PYTHONPATH", None)
    environment["HF_HUB_OFFLINE"] = "1"  # a network would make `make data` download half a gigabyte
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, f"{command}\n{done.stdout}"
    assert "Traceback" not in done.stdout
    return done.stdout


def at_small_size(command: str) -> str:
    target = re.search(r"make ([\w-]+)", command)
    assert target
    if target[1] not in TARGETS_WITH_GIN:
        return command
    if 'GIN="' in command:
        return command.replace('GIN="', f'GIN="{SMALL} ')
    return f"{command} GIN={shlex.quote(SMALL)}"


def test_the_readme_has_commands() -> None:
    commands = readme_commands()
    assert len(commands) > 15
    assert commands[0] == "make demo"


def test_commands_run_in_the_order_of_the_readme(copy: Path) -> None:
    printed: dict[str, str] = {}
    for command in readme_commands():
        if command in NOT_RUN_HERE:
            target = command.split()[1]
            assert re.search(rf"^{target}: ", (copy / "Makefile").read_text(), re.MULTILINE)
        elif command == "make data DATASET=wikitext":
            # Without a network it says so, and the two ways on; with one it would load the real thing.
            said = run(copy, command, code=2)
            assert "FILES=" in said
            run(copy, 'make data DATASET=wikitext FILES="train=texts/train.txt validation=texts/validation.txt"')
        else:
            printed[command] = run(copy, at_small_size(command))
    assert "report: runs/byt5_tiny_demo/report/README.md" in printed["make demo"]
    assert "make train" in printed["make help"]
    assert (copy / "runs" / "mesh" / "checkpoints" / "3").is_dir()
    published = copy / "experiments" / "byt5_tiny_demo"
    assert report.check_block(published) == []
    said = run(copy, at_small_size("make demo"))
    assert "already trained for 3 steps" in said
    assert "evaluation: up to date" in said


@pytest.mark.parametrize("name", sorted(path.name for path in paths.EXPERIMENTS.iterdir() if path.is_dir()))
def test_published_results_are_what_their_records_say(name: str) -> None:
    folder = paths.EXPERIMENTS / name
    assert report.check_block(folder) == []
    assert (folder / "README.md").is_file()
    results = report.read_results(folder / report.RESULTS_FILE)
    assert results["experiment"] == name
    current = config.settings(config.load(name).experiment)
    told = results["identity"]["settings"]
    assert {key for key in told if told[key] != current.get(key)} == set(), "run it again: the gin file has changed"


def test_help_lists_every_target_with_one_line() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    printed = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    listed = [line.split()[1] for line in printed.splitlines()]
    assert sorted(listed) == sorted(phony)
