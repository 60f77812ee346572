"""Every command of a README runs, at a small size, in a copy of the checkout whose path has a space."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.experiment import config, prepare
from t5xpg.experiment.identity import run_identity
from t5xpg.run import report
from t5xpg.study import matrix, sweep
from tests.conftest import PROGRAMS
from tests.workplace import REPOSITORY, sentences

READMES = [REPOSITORY / "README.md", *sorted(paths.EXPERIMENTS.glob("*/README.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall(READMES[0].read_text(encoding="utf-8"))
SMALL = (
    "--gin.TRAIN_STEPS=3 --gin.EVAL_STEPS=1 --gin.WARMUP_STEPS=1 --gin.BATCH_SIZE=4 --gin.NUM_MICROBATCHES=1 "
    "--gin.DTYPE=float32 "
    "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 32} --gin.encoder_decoder.T5Config.num_encoder_layers=1 "
    "--gin.encoder_decoder.T5Config.num_decoder_layers=1 --gin.encoder_decoder.T5Config.emb_dim=32 "
    "--gin.encoder_decoder.T5Config.mlp_dim=32 --gin.encoder_decoder.T5Config.num_heads=2 "
    "--gin.encoder_decoder.T5Config.head_dim=16"
)
# Run by other means: the tests themselves and what they are part of.
NOT_RUN_HERE = {
    "make test",
    "make lint",
    "make fuzz",
    "make prove-resume",
    "make prove-resume EXP=byt5_tiny_demo KILLS=20",  # test_proving.py
    'make prove-resume EXP=byt5_tiny_demo KILLS=100 GIN="--gin.TRAIN_STEPS=60 --gin.CHECKPOINT_PERIOD=3 '
    '--gin.EVAL_PERIOD=6 --gin.EVAL_STEPS=4"',
    "make prove-hosts EXP=byt5_tiny_demo",  # test_several_hosts.py, test_proving_hosts.py
    "make reproduce",
    "make reproduce EXP=byt5_tiny_demo",  # test_reproduction.py
    "make sweep EXP=optimizers_tiny",  # this one and those that follow it: sweeps/test_sweep.py
    "make sweep EXP=optimizers_tiny TIMES=1",
    "make report EXP=optimizers_tiny",
    "make sweep EXP=ul2_tiny",  # sweeps/test_judging.py
    "make report EXP=ul2_tiny",
    "make check EXP=matrix_tiny",  # and those that follow it: matrix/test_matrix.py
    "make sweep EXP=matrix_tiny",
    "make report EXP=matrix_tiny",
    "make install MACHINE=cuda",  # test_makefile.py, as of every kind
    "make docker-build",  # these: test_makefile.py, docker/test_dockerfile.py
    "make docker-train EXP=byt5_tiny_demo",
}
# For machines with accelerators, and text of another size: test_launch.py.
READY_TO_LAUNCH = re.compile(r"\b(EXP=(byt5_small_wikitext_gpu|t5_1_1_base_c4)\b|DATASET=c4\b|TASK=c4_)")
# Data sets that are somewhere else: without a network, or catalogues, they say so and the way out; here any text does.
ELSEWHERE = re.compile(r"make data DATASET=(wikitext|norwegian|norwegian_messages)( MAX_MB=\d+)?")
# Of other experiments than those of span corruption: the rest of a text is as long as the text.
LENGTHS = {"code_prefix_lm": "{'inputs': 64, 'targets': 64}"}
MEASURING = "make bench"  # whatever rows: they stand beside every row of the table
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS_WITH_GIN = {"demo", "check", "estimate", "plan", "train", "record", "eval", "infer", "export"}


def commands_of(text: str) -> list[str]:
    """The lines of code blocks that call make, and all that stands as `make …` in the text."""
    found = []
    for number, part in enumerate(re.split(r"^```", text, flags=re.MULTILINE)):
        pattern = r"^((?:\w+=\S+ )*make\b.*)$" if number % 2 else r"`((?:\w+=\S+ )*make\b[^`]*)`"
        found += [" ".join(command.split()) for command in re.findall(pattern, part, re.MULTILINE)]
    return found


def readme_commands() -> list[str]:
    """Of all READMEs, in the order in which a reader meets them, each once."""
    # the results blocks are generated, and say how to generate them
    texts = [re.sub(r"<!--.*?-->", "", file.read_text(encoding="utf-8"), flags=re.DOTALL) for file in READMES]
    return list(dict.fromkeys(command for text in texts for command in commands_of(text)))


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
            os.utime(folder / name, (0, 0))  # older than the mark below
    # The packages of the Python that runs this test, marked as installed: no test installs anything.
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if not path.name.startswith(".installed-"):
            (folder / ".venv" / path.name).symlink_to(path)
    (folder / ".venv" / ".installed-cpu").touch()
    text = folder / "texts"
    text.mkdir()
    (text / "train.txt").write_text(sentences(200, seed=1))
    (text / "validation.txt").write_text(sentences(40, seed=2))
    names = (("validation", "held_out"), ("train", "wiki.train"), ("validation", "wiki.valid"))
    for split, name in (*names, ("train", "tekst"), ("validation", "mer")):
        shutil.copy(text / f"{split}.txt", folder / f"{name}.txt")
    (folder / "articles.jsonl").write_text(
        "".join(f'{{"text": "{line}"}}\n' for line in sentences(200, seed=3).splitlines())
    )
    subprocess.run(["gzip", "articles.jsonl"], cwd=folder, check=True)
    for language, line in (("en", "A dog, number {n}."), ("de", "Ein Hund, Nummer {n}.")):
        (folder / f"captions.{language}").write_text("".join(line.format(n=n) + "\n" for n in range(40)))
    (folder / "valid.tsv").write_text("".join(f"Two dogs, {n}.\tZwei Hunde, {n}.\n" for n in range(8)))
    (folder / "multi30k").mkdir()
    for name, count in (("train", 60), ("val", 8), ("test_2016_flickr", 8)):
        for language, line in (("en", "A man rides {n} horses."), ("de", "Ein Mann reitet {n} Pferde.")):
            with gzip.open(folder / "multi30k" / f"{name}.{language}.gz", "wt") as file:
                file.writelines(line.format(n=n) + "\n" for n in range(count))
    questions = ("The <extra_id_0> ruined my sleep", "<extra_id_0> after <extra_id_1>")
    (folder / "in.jsonl").write_text("".join(json.dumps({"inputs": text}) + "\n" for text in questions))
    program = next(body for kind, body in BLOCKS if kind == "python")
    (folder / "my_tasks.py").write_text(program.replace("/path/", f"{text}/"))
    gin = next(body for _, body in BLOCKS if body.startswith("from __gin__"))
    (folder / "experiments" / "mine").mkdir()
    (folder / "experiments" / "mine" / "mine.gin").write_text(gin)
    for dataset in ("pydocs", "pycode"):
        run(folder, f"make data DATASET={dataset} LIMIT=200")
    run(folder, 'make data DATASET=wikitext FILES="train=texts/train.txt validation=texts/validation.txt"')
    return folder


def run(folder: Path, command: str, code: int = 0) -> str:
    outer = ("T5XPG_", "PYTEST", "MAKE", "MFLAGS")  # what an outer make and this test's own surroundings leave
    values = " ".join(re.findall(r"^VALUES [:+]= (.*)$", MAKEFILE, re.MULTILINE)).split()
    dropped = {"PYTHONPATH", "VIRTUAL_ENV", "MACHINE", *values}
    environment = {n: v for n, v in os.environ.items() if not n.startswith(outer) and n not in dropped}
    environment[PROGRAMS] = os.environ[PROGRAMS]
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
    experiment = re.search(r"EXP=(\w+)", command)
    lengths = LENGTHS.get(experiment[1]) if experiment else None
    small = f"{SMALL} --gin.TASK_FEATURE_LENGTHS={lengths}" if lengths else SMALL
    if 'GIN="' in command:
        return re.sub(r'GIN="([^"]*)"', lambda given: f'GIN="{given[1]} {small}"', command)
    return f"{command} GIN={shlex.quote(small)}"


def test_the_readme_has_commands() -> None:
    commands = readme_commands()
    assert commands[0] == "make demo"
    for command in ("make check EXP=mine", "make install MACHINE=cpu", "make infer INPUT=in.jsonl OUTPUT=out.jsonl"):
        assert command in commands
    assert NOT_RUN_HERE.issubset(commands)


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    text = (
        "Type `make\na X=1`, or `B=2 make b`; not makeup.\n```\nmake c\nC=3 make d Y='1 2'\nls\n```\n| `make e` | `f` |"
    )
    assert commands_of(text) == ["make a X=1", "B=2 make b", "make c", "C=3 make d Y='1 2'", "make e"]


@pytest.mark.process
def test_commands_run_in_the_order_of_the_readme(copy: Path) -> None:
    printed: dict[str, str] = {}
    for command in readme_commands():
        if command in NOT_RUN_HERE or command.startswith(MEASURING) or READY_TO_LAUNCH.search(command):
            target = re.search(r"\bmake ([\w-]+)", command)
            assert target
            assert re.search(rf"^{target[1]}: ", MAKEFILE, re.MULTILINE)
        elif elsewhere := ELSEWHERE.fullmatch(command):
            if elsewhere[1] != "norwegian_messages":  # programs may bring them
                assert "FILES=" in run(copy, command, code=2)
            run(copy, f'make data DATASET={elsewhere[1]} FILES="train=texts/train.txt validation=texts/validation.txt"')
        elif command == "make import CHECKPOINT=google/byt5-small":
            assert "CHECKPOINT=path" in run(copy, command, code=2)  # the hub is not asked
        else:
            printed[command] = run(copy, at_small_size(command))
    assert "report: runs/byt5_tiny_demo/report/README.md" in printed["make demo"]
    assert "make train" in printed["make help"]
    assert "install:" not in printed["make install MACHINE=cpu"]
    assert len((copy / "out.jsonl").read_text().splitlines()) == 2
    for name in (
        *("mesh", "mine", "my_text", "my_task", "captions", "translate_ende", "byt5_tiny_mps"),
        *("code_prefix_lm", "code_a", "norwegian_t5", "norwegian_t5_tiny"),
    ):
        assert (copy / "runs" / name / "checkpoints" / "3").is_dir()
    published = copy / "experiments" / "byt5_tiny_demo"
    assert report.check_block(published) == []
    said = run(copy, at_small_size("make demo"))
    assert "already trained for 3 steps" in said
    assert "evaluation: up to date" in said


EXPERIMENTS = sorted(path.name for path in paths.EXPERIMENTS.iterdir() if path.is_dir())
# Recipes that nobody has run to their end; their pages say so.
NOT_RUN = {"norwegian_t5", "byt5_small_wikitext_gpu", "t5_1_1_base_c4"}


# the pages of many runs: sweeps/test_sweep.py, matrix/test_matrix.py
ONE_RUN = [one for one in EXPERIMENTS if not (sweep.is_sweep(one) or matrix.is_matrix(one) or one in NOT_RUN)]


@pytest.mark.parametrize("name", ONE_RUN)
def test_published_results_are_what_their_records_say(name: str) -> None:
    folder = paths.EXPERIMENTS / name
    assert report.check_block(folder) == []
    assert (folder / "README.md").is_file()
    results = report.read_results(folder / report.RESULTS_FILE)
    assert results["experiment"] == name
    experiment = config.load(name).experiment
    assert results["identity"]["seed"] == experiment.random_seed
    assert results["steps"] == results["total_steps"] == experiment.total_steps
    current = json.loads(json.dumps(run_identity(experiment, prepare.Source({}))["settings"]))
    told = results["identity"]["settings"]
    different = {key for key in told.keys() | current.keys() if told.get(key, "?") != current.get(key, "?")}
    assert different == set(), "run it again: the gin file has changed"


@pytest.mark.parametrize("name", sorted(NOT_RUN))
def test_a_recipe_without_results_says_so(name: str) -> None:
    folder = paths.EXPERIMENTS / name
    assert report.check_block(folder) == []
    assert "has not been run" in (folder / "README.md").read_text(encoding="utf-8")
    assert not (folder / report.RESULTS_FILE).exists()


def test_the_receipt_says_what_the_readme_says() -> None:
    receipt = json.loads((paths.EXPERIMENTS / "byt5_tiny_demo" / "resume_receipt.json").read_text(encoding="utf-8"))
    kills = receipt["kills"]
    listed = ", ".join(f"{phase} {count}" for phase, count in kills["by_phase"].items())
    readme = " ".join(READMES[0].read_text(encoding="utf-8").split())
    assert f"of {kills['dealt']} kills ({listed}) in {receipt['steps']} steps of `{receipt['experiment']}`" in readme
    assert f'KILLS={kills["asked"]} GIN="{" ".join(receipt["overrides"])}"' in readme
    assert receipt["proven"]
    assert receipt["differences"] == []
