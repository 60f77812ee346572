"""Every command of README.md, docs/ and the experiments' pages runs, at a small size, in one copy of the checkout, and
so do the cells of the notebook.

The path of the copy has a space. The pages are tried in the order in which the index of docs/ lists them, each command
once; the files that they tell to write are there.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from t5xpg.experiment import config
from t5xpg.run import report
from tests.conftest import PROGRAMS, REVISION
from tests.docs.pages import DOCS, EXPERIMENTS, README, commands_of, files_of
from tests.refusals import assert_named
from tests.table_files import TABLES, write_table_files
from tests.workplace import REPOSITORY, sentences
from tests.written_pages import wrong_files

SMALL = (
    "--gin.TRAIN_STEPS=3 --gin.EVAL_STEPS=1 --gin.WARMUP_STEPS=1 --gin.BATCH_SIZE=8 --gin.NUM_MICROBATCHES=1 "
    "--gin.DTYPE=float32 --gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 32} "
    "--gin.encoder_decoder.T5Config.num_encoder_layers=1 --gin.encoder_decoder.T5Config.num_decoder_layers=1 "
    "--gin.encoder_decoder.T5Config.emb_dim=32 --gin.encoder_decoder.T5Config.mlp_dim=32 "
    "--gin.encoder_decoder.T5Config.num_heads=2 --gin.encoder_decoder.T5Config.head_dim=16"
)
CSHARP_JAVA = "experiments/java_csharp/csharp_java.gin"
CODE_LM = "experiments/code_prefix_lm/code_lm.gin"
MADE_UP = "--gin.needs.Data.sha256=None --gin.LENGTH_BUCKETS=None --gin.MAX_CUT_SHARE=1.0"
OF_EXPERIMENT = {
    # no answer is ever right: the second evaluation is no better than the first, and the run ends
    "answers": "--gin.TRAIN_STEPS=50 --gin.INFER_EVAL_PERIOD=2 --gin.INFER_EVAL_STEPS=1 --gin.EARLY_STOP_PATIENCE=1",
    # of a decoder alone
    **dict.fromkeys(("adaptation_tiny", CODE_LM), "--gin.TASK_FEATURE_LENGTHS={'targets': 64}"),
    # the teacher has been made small, too
    "student": "--gin.teacher/encoder_decoder.T5Config.num_decoder_layers=1",
    # made-up files
    **dict.fromkeys((*TABLES, "norwegian_t5_tiny"), MADE_UP),
    CSHARP_JAVA: f"{MADE_UP} --gin.back/needs.Data.sha256=None",
    "translate_ende": "--gin.LENGTH_BUCKETS=None",
    "packages.gin": "--gin.INFER_EVAL_PERIOD=3 --gin.INFER_EVAL_STEPS=1",
}
# What is written behind the files of pages whose commands take no GIN.
OF_FILE = {
    "rates.gin": "\nfrom t5xpg.models import encoder_decoder\nEVAL_PERIOD = 1\n"
    + "\n".join(one for one in config.split_overrides(SMALL)[0] if not one.startswith("DTYPE"))
}
TARGETS_WITH_GIN = {"demo", "check", "estimate", "plan", "train", "record", "eval", "infer", "export"}
# Commands that are tried by other tests, or would measure, install or need what is not here.
TRIED_ELSEWHERE = (
    r"make (test|prove|lint|bench|gpu|fuzz|install|lock|docker)\b.*",
    r"make (reproduce|verify-claim|speedrun-check|convert-gin|new)\b.*",
    r"make (sweep EXP=\w+_tiny.*|sweep .* LAUNCHER=slurm .*|train EXP=adapters_tiny .*|cache .*\bRUNNER=.*)",
    r"make report EXP=demo",
    r"make (report|check) EXP=(speedrun|(?!norwegian|passkey)\w+_tiny)",
    r"make (watch .*|site SERVE=1|runs (REMOVE|GC)=.*)",  # the first two end with Ctrl-C
    r"make (import|eval|infer|vocab) .*(=path/to/|google/byt5-small|EXP=(byt5_small|t5_small)\b|gemma).*",
    r"make export (.* (OUTPUT|PUSH)=.*|EXP=mine FORMAT=peft)",
    r".*(EXP=(byt5_small_wikitext_gpu|t5_1_1_base_c4)\b|DATASET=c4\b|TASK=c4_|\bt5gemma_270m\b).*",
    r".*make (train|infer|export) EXP=(answers_lora|student)\b.*",
    r".* (RUN=answers_prompt|OUTPUT=(beams|samples)\.jsonl) .*",
    r".*(\bCOORDINATOR=|\bENGINE=t5x\b|LOGGER=|gin_file=my_logger\.gin|\bs3://).*",
)
# A folder laid out like a dataset of the hub has this card.
HUB = "---\nconfigs:\n- config_name: dan_Latn\n  data_files:\n  - split: train\n    path: data/*\n---\n"
# Datasets that are fetched: here any text does.
FETCHED = re.compile(r"make data DATASET=(wikitext|norwegian)( MAX_MB=\d+)?")


def tried_here(command: str) -> bool:
    return "…" not in command and not any(re.fullmatch(pattern, command) for pattern in TRIED_ELSEWHERE)


class Copy:
    """A copy of the checkout, with this environment's packages, and what the commands in it have printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed: dict[str, str] = {}

    def run(self, command: str, code: int = 0) -> str:
        """What a line of a shell prints."""
        # what an outer make sets is left out
        kept = ("HOME", "LANG", "PATH", "TMPDIR", "XLA_FLAGS", PROGRAMS, REVISION)
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment["HF_HUB_OFFLINE"] = "1"  # a network would make `make data` download half a gigabyte
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        )  # fmt: skip
        assert done.returncode == code, f"{command}\n{done.stdout}"
        assert "Traceback" not in done.stdout
        return done.stdout

    def try_page(self, page: Path) -> None:
        """Run the commands of a page; those that an earlier page has are not run again."""
        for name, text in files_of(page).items():
            text = text.replace("/path/", f"{self.folder / 'texts'}/")
            if name.endswith(".toml"):
                text = re.sub(r"steps = \d+", "steps = 3", text)
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text + OF_FILE.get(name, ""))
            if name.endswith(".gin"):
                experiment = self.folder / "experiments" / name.removesuffix(".gin")
                experiment.mkdir(exist_ok=True)
                (experiment / name).write_text(text + OF_FILE.get(name, ""))
        commands = [command for command in commands_of(page.read_text(encoding="utf-8")) if tried_here(command)]
        for command in commands:
            if command not in self.printed:
                self.printed[command] = self._try(command)

    def _try(self, command: str) -> str:
        if fetched := FETCHED.fullmatch(command):
            command = f'make data DATASET={fetched[1]} FILES="train=texts/train.txt validation=texts/validation.txt"'
        return self.run(re.sub(r"HUB=\S+", "HUB=hub", at_small_size(command)))


def at_small_size(command: str) -> str:
    target = re.search(r"make ([\w-]+)", command)
    assert target
    if target[1] not in TARGETS_WITH_GIN:
        return command
    experiment = re.search(r"EXP=(\S+)", command)
    small = f"{SMALL} {OF_EXPERIMENT.get(experiment[1], '') if experiment else ''}".strip()
    if 'GIN="' in command:
        return re.sub(r'GIN="([^"]*)"', lambda given: f'GIN="{given[1]} {small}"', command)
    return f"{command} GIN={shlex.quote(small)}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The files that git tracks and those that the pages read; README.md has been tried."""
    folder = tmp_path_factory.mktemp("a copy") / "t5xpg"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, check=True, text=True).stdout
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
    write_texts(folder)
    copy = Copy(folder)
    for dataset in ("pydocs", "pycode", "pypackages"):
        copy.run(f"make data DATASET={dataset} LIMIT=200")
    copy.try_page(README)
    return copy


def write_texts(folder: Path) -> None:
    train, validation = sentences(200, seed=1), sentences(40, seed=2)
    texts = {
        **dict.fromkeys(("texts/train.txt", "wiki.train.txt"), train),
        **dict.fromkeys(("texts/validation.txt", "held_out.txt", "wiki.valid.txt"), validation),
        **{f"norwegian/{split}.txt": train for split in ("train", "validation", "test")},
        "texts/train.tsv": "".join(f"what is {n} of train?\t{n}\n" for n in range(40)),
        "texts/validation.tsv": "".join(f"what is {n} of validation?\t{n}\n" for n in range(6)),
        "stories.txt": train,
        "reviews.tsv": "".join(f"I was there {n} times.\t{n % 2}\n" for n in range(40)),
        "answers.txt": "numpy\nscipy\npandas\n",
        "articles.jsonl.gz": lines_of([{"text": line} for line in train.splitlines()]),
        "held_out.jsonl": lines_of([{"text": "Never again.", "label": "0"}] * 3),
        "in.jsonl": lines_of([{"inputs": "The <extra_id_0> ruined my sleep"}, {"inputs": "<extra_id_0> sat"}]),
        "quiz.jsonl": lines_of([{"question": f"What is {n}?", "answer": f"It is {n}."} for n in range(100)]),
        "hub/README.md": HUB,
    }
    for language, dog in (("en", "A dog, number {}.\n"), ("de", "Ein Hund, Nummer {}.\n")):
        counts = {"train": 40, "multi30k/train": 60, "multi30k/val": 8, "multi30k/test_2016_flickr": 8}
        texts |= {f"{name}.{language}.gz": "".join(map(dog.format, range(n))) for name, n in counts.items()}
        texts[f"valid.{language}"] = "".join(map(dog.format, range(6)))
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    write_table_files(folder)
    (folder / "hub" / "data").mkdir()
    rows = pyarrow.table({"text": [f"{number}. {'Et stykke tekst. ' * 10}" for number in range(50)]})
    pyarrow.parquet.write_table(rows, folder / "hub" / "data" / "000_00000.parquet")


def lines_of(objects: list[dict[str, str]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in objects)


@pytest.mark.process
def test_the_readme(copy: Copy) -> None:
    assert "report: runs/demo/report/README.md" in copy.printed["make demo"]
    assert "train" in copy.run("make help")
    for name in ("byt5_tiny", "adafactor", "my_text", "my_task", "mine"):
        assert (copy.folder / "runs" / name / "checkpoints" / "3").is_dir()
    assert wrong_files(copy.folder / "experiments" / "mine") == []


@pytest.mark.process
@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_a_page(copy: Copy, page: Path) -> None:
    copy.try_page(page)


@pytest.mark.process
def test_a_mixture_of_a_task_that_does_not_exist(copy: Copy) -> None:
    text = files_of(README.with_name("docs") / "tasks.md")["my_mixtures.py"]
    (copy.folder / "wrong.py").write_text(text.replace("captions_translate_en", "caption_translate_en"))
    said = copy.run("PYTHONPATH=. make cache TASK=nested MODULE_IMPORT=wrong", code=2)
    assert_named(said, ["caption_translate_en_de", "Did you mean captions_translate_en_de", "make data DATASET="])


# The value of a cell's last line is printed, as a notebook shows it.
CELLS = """
import ast, json, sys
names = {}
for source in json.loads(sys.stdin.read()):
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        print("shown:", repr(eval(compile(ast.Expression(last.value), "cell", "eval"), names)), flush=True)
"""


@pytest.mark.process
def test_the_cells_of_the_notebook(copy: Copy) -> None:
    notebook = json.loads((copy.folder / "docs" / "python.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    environment = {**os.environ, "PYTHONPATH": str(copy.folder), "STEPS": "12"}
    done = subprocess.run(
        [sys.executable, "-c", CELLS], input=json.dumps(sources), env=environment, cwd=copy.folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    frame, answers, losses, shapes = done.stdout.split("shown: ")[1:]
    assert "nats_per_byte" in frame
    assert answers.startswith("['")
    assert losses.startswith("array([")
    assert shapes.strip() == "[(32, 128)]"  # 31 bytes and the end


@pytest.mark.proof
@pytest.mark.parametrize("page", EXPERIMENTS, ids=lambda page: page.parent.name)
def test_the_page_of_an_experiment(copy: Copy, page: Path) -> None:
    copy.try_page(page)
    experiment = copy.folder / "experiments" / page.parent.name
    if (experiment / report.RESULTS_FILE).exists():
        assert wrong_files(experiment) == []
