"""Reading sweep.toml and matrix.toml: the runs that they stand for, and every mistake in them with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.study.matrix import Matrix
from t5xpg.study.matrix_plan import MatrixPlan
from t5xpg.study.plan import Plan, Table, line_of, read
from t5xpg.study.sweep import Sweep
from t5xpg.study.sweep_plan import Recipe, SweepPlan

SWEEP = """
[search]
steps = 500
seed = 3

[final]
steps = 2000
seeds = [0, 1]
reference = "stock"

[short]
recipe = "fast"
steps = 800
seeds = [0, 1]

[judged]
tasks = ["one", "two"]

[recipes.stock]
title = "Stock"
gin_file = "gin/optimizers/adafactor.gin"
candidates = ["LEARNING_RATE=1.0"]

[recipes.fast]
title = "Fast"
gin_file = "gin/optimizers/muon.gin"
candidates = ["LEARNING_RATE=0.01", "LEARNING_RATE=0.02   WARMUP_STEPS=10"]
"""

MATRIX = """dataset = "some_text"

[architectures.encoder_decoder]
title = "encoder-decoder"

[architectures.decoder_lm]
title = "decoder-only"
gin_files = ["gin/architectures/decoder_only.gin"]
bindings = ["PACK=True"]

[objectives.span_corruption]
title = "span corruption"

[objectives.lm]
title = "LM"
gin_files = ["gin/objectives/lm.gin"]
bindings = ["TASK_FEATURE_LENGTHS={'targets': 32}"]

[vocabularies.bytes]
title = "bytes"

[vocabularies.bpe]
title = "BPE"
train = { model = "bpe", size = 80, byte_fallback = true }

[trained]
encoder_decoder = ["span_corruption"]
decoder_lm = ["lm"]

[[left_out]]
architectures = ["encoder_decoder"]
objectives = ["lm"]
reason = "Nothing to encode."

[[left_out]]
architectures = ["decoder_lm"]
objectives = ["span_corruption"]
reason = "No inputs."
"""


def read_text(folder: Path, text: str, model: type[Plan]) -> Any:
    (folder / "plan.toml").write_text(text, encoding="utf-8")
    return read(folder / "plan.toml", model)


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    (tmp_path / "small.gin").write_text("")
    (tmp_path / Sweep.plan_file).write_text(SWEEP, encoding="utf-8")
    (tmp_path / Matrix.plan_file).write_text(MATRIX, encoding="utf-8")
    return str(tmp_path / "small.gin")


def test_a_sweep_is_its_runs(experiment: str, tmp_path: Path) -> None:
    sweep = Sweep(experiment, tmp_path)
    search = sweep.search_runs()
    assert [tuple(run.labels.values()) for run in search] == [
        ("fast", "LEARNING_RATE=0.01", 500, 3),
        ("fast", "LEARNING_RATE=0.02 WARMUP_STEPS=10", 500, 3),
    ]
    assert search[1].overrides == [
        "--gin_file=gin/optimizers/muon.gin",
        "--gin.LEARNING_RATE=0.02",
        "--gin.WARMUP_STEPS=10",
        "--gin.TRAIN_STEPS=500",
        "--gin.RANDOM_SEED=3",
    ]
    long = sweep.long_runs(sweep.first_candidates)
    assert [(run.stage, run.labels["recipe"], run.labels["steps"], run.labels["seed"]) for run in long] == [
        ("final", "stock", 2000, 0),
        ("final", "fast", 2000, 0),
        ("short", "fast", 800, 0),
        ("final", "stock", 2000, 1),
        ("final", "fast", 2000, 1),
        ("short", "fast", 800, 1),
    ]
    names = {run.name for run in [*search, *long]}
    assert len(names) == 8, "a folder of its own each"
    assert not any(character in name for name in names for character in "/ @")


def test_what_a_sweep_does_not_say_has_defaults(experiment: str, tmp_path: Path) -> None:
    plan = 'final.steps = 300\nrecipes.rates.candidates = ["LEARNING_RATE=0.005", "LEARNING_RATE=0.02"]\n'
    (tmp_path / Sweep.plan_file).write_text(plan, encoding="utf-8")
    sweep = Sweep(experiment, tmp_path)
    assert (sweep.plan.reference, sweep.plan.decides.metric) == ("rates", "validation/nats_per_byte")
    (long,) = sweep.long_runs(sweep.first_candidates)
    assert long.path in [run.path for run in sweep.search_runs()], "it is trained once"
    assert sweep.collect([])["runs"] == 2


def test_a_matrix_is_its_cells(experiment: str, tmp_path: Path) -> None:
    matrix = Matrix(experiment, tmp_path)
    runs = matrix.runs_of_cells()
    assert [(run.name, run.labels["task"]) for run in runs] == [
        ("encoder_decoder,span_corruption,bytes", "some_text_span_corruption"),
        ("decoder_lm,lm,bytes", "some_text_lm"),
        ("encoder_decoder,span_corruption,bpe", "some_text_span_corruption_some_text_bpe_80"),
        ("decoder_lm,lm,bpe", "some_text_lm_some_text_bpe_80"),
    ]
    assert runs[1].gin_files == ["gin/architectures/decoder_only.gin", "gin/objectives/lm.gin"]
    assert runs[1].bindings == [
        "MIXTURE_OR_TASK_NAME=some_text_lm",
        "PACK=True",
        "TASK_FEATURE_LENGTHS={'targets': 32}",
    ]
    assert [tuple(one.values()) for one in matrix.plan.left_out_pairs()] == [
        ("encoder_decoder", "lm", "Nothing to encode."),
        ("decoder_lm", "span_corruption", "No inputs."),
    ]


def test_a_vocabulary_is_made_with_its_settings(tmp_path: Path) -> None:
    command = "make vocab DATASET=some_text SIZE=80 MODEL=bpe BYTE_FALLBACK=1"
    for more, name, ending in (("", "bpe_80", ""), (', name = "mine"', "mine", " VOCAB=mine")):
        found = read_text(tmp_path, MATRIX.replace("size = 80", f"size = 80{more}"), MatrixPlan)
        settings = VocabularySettings(size=80, model="bpe", byte_fallback=True)
        assert found.vocabularies["bpe"].train == (name, settings)
        assert [found.vocabulary_command(one) for one in found.vocabularies] == [None, command + ending]


SWEEP_MISTAKES = [
    ("steps = 500", 'steps = "many"', "[search] steps: Input should be a valid integer, and it is 'many'."),
    ("steps = 500", "steps = 0", "[search] steps: Input should be greater than or equal to 1, and it is 0."),
    ("seed = 3", "sead = 3", "[search] sead is not known. Did you mean seed?"),
    ("seeds = [0, 1]\nreference", "seeds = [0.5]\nreference", "[final] seeds: Input should be a valid integer"),
    ('reference = "stock"', 'reference = "stok"', "[final] reference = 'stok' is no recipe. Did you mean stock?"),
    ("[recipes.fast]", "[recipes.'Fast one']", "[recipes] Fast one: String should match pattern"),
    ('["LEARNING_RATE=1.0"]', "[]", "[recipes.stock] candidates: List should have at least 1 item"),
    ("adafactor.gin", "adafacter.gin", "Did you mean gin/optimizers/adafactor.gin"),
    ("[search]", "[serch]", "serch is not known. Did you mean search?"),
    ('["one", "two"]', "[1]", "[judged] tasks: Input should be a valid string, and it is 1."),
    ('["one", "two"]', '["one", "one"]', "[judged] tasks: each name is needed once"),
    ("[search]", 'metric = "validation/acuracy"\n[search]', "'validation/acuracy'. Did you mean validation/accuracy"),
    ("[search]", 'metric = "my_task/bleu"\n[search]', "mode has to say whether my_task/bleu is better the lower"),
]
MATRIX_MISTAKES = [
    ("decoder_lm = [", "decoder_ml = [", "there is no architecture decoder_ml. Did you mean decoder_lm?"),
    ('["decoder_lm"]', '["decodr_lm"]', "there is no architecture decodr_lm. Did you mean decoder_lm?"),
    ('decoder_lm = ["lm"]', 'decoder_lm = ["lmm"]', "there is no objective lmm. Did you mean lm?"),
    ("objectives.lm]", "objectives.lmm]", "there is no objective lmm. Did you mean lm or mlm?"),
    ('decoder_lm = ["lm"]', 'decoder_lm = ["lm", "span_corruption"]', "with span_corruption is said more than once."),
    ('"PACK=True"', '"PACK True"', "'PACK True' binds nothing: NAME=value is needed."),
    ('title = "LM"', 'titel = "LM"', "[objectives.lm] titel is not known. Did you mean title?"),
    ('model = "bpe"', 'model = "bqe"', "[vocabularies.bpe] train: MODEL=bqe is not known. Did you mean bpe?"),
    ("size = 80", 'size = "80"', "[vocabularies.bpe] train: a value is of another type than `make vocab` takes"),
    ("size = 80", "sise = 80", "[vocabularies.bpe] train: sise is not known. Did you mean size?"),
    ('reason = "No inputs."', 'reason = ""', "[left_out] reason: String should have at least 1 character"),
    ('dataset = "some_text"', "dataset = 3", "dataset: Input should be a valid string, and it is 3."),
    ("[trained]", "[trained", "plan.toml: "),
]


@pytest.mark.parametrize(
    ("text", "model", "old", "new", "said"),
    [
        *((SWEEP, SweepPlan, *mistake) for mistake in SWEEP_MISTAKES),
        *((MATRIX, MatrixPlan, *mistake) for mistake in MATRIX_MISTAKES),
    ],
)
def test_mistakes_are_said_with_their_lines(
    tmp_path: Path, text: str, model: type[Plan], old: str, new: str, said: str
) -> None:
    assert text.count(old) == 1
    with pytest.raises(UserError) as error:
        read_text(tmp_path, text.replace(old, new), model)
    line = text[: text.index(old)].count("\n") + 1
    assert said in str(error.value)
    assert str(tmp_path / "plan.toml") in str(error.value)
    assert f"line {line}" in str(error.value)


def test_every_pair_is_trained_or_left_out(tmp_path: Path) -> None:
    text = MATRIX[: MATRIX.rindex("[[left_out]]")]
    with pytest.raises(UserError, match="decoder_lm with span_corruption is neither trained nor left out with a reaso"):
        read_text(tmp_path, text, MatrixPlan)


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_text(tmp_path, SWEEP.replace("steps = 2000", "").replace('recipe = "fast"', ""), SweepPlan)
    assert "2 mistakes in a plan:" in str(error.value)
    assert "line 6: [final] steps is missing." in str(error.value)
    assert "line 11: [short] recipe is missing." in str(error.value)


def test_the_plans_of_this_repository_can_be_read(tmp_path: Path) -> None:
    sweeps = [file.parent.name for file in paths.EXPERIMENTS.glob(f"*/{Sweep.plan_file}")]
    matrices = [file.parent.name for file in paths.EXPERIMENTS.glob(f"*/{Matrix.plan_file}")]
    assert all(Sweep(name, tmp_path).plan.recipes for name in sweeps)
    assert all(Matrix(name, tmp_path).plan.cells() for name in matrices)
    assert sweeps
    assert matrices


def keys(table: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a plan, "recipes.<name>.title"."""
    for name, field in table.model_fields.items():
        yield prefix + name
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        for kind in (kind for kind in kinds if issubclass(kind, Table)):
            yield from keys(kind, f"{prefix}{name}.{'<name>.' if kind is Recipe else ''}")


def test_the_page_of_sweeps_names_every_key() -> None:
    text = (paths.REPOSITORY / "docs" / "sweeps.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w.<>]+)` \|", text, re.MULTILINE))
    every = set(keys(SweepPlan))
    assert {"metric", "final.steps", "judged.tasks", "recipes.<name>.candidates"} < every
    assert every - {"search", "final"} == named, "these two are named by their keys"


TOML = """# a comment with [brackets]
name = "top"
[axis . one] # here
title = "One"   # [not.a.table]
"list" = [
    "first",
    'second',
]
[[many]]
names = ["a"]
[[many]]
names = ["b", "c"]
"""


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        (("name",), None, 2),
        (("axis", "one"), None, 3),
        (("axis", "one", "title"), None, 4),
        (("axis", "one", "list", 1), "second", 7),
        (("many", 0, "names", 0), "a", 10),
        (("many", 1, "names", 1), "c", 12),
        # the nearest place stands for what is not found
        (("axis", "one", "list", 2), "third", 5),
        (("axis", "one", "absent"), None, 3),
        (("absent", "absent"), None, 1),
        (("many", 7, "names"), None, 1),
    ],
)
def test_lines_of_a_toml_text_are_found(place: tuple[str | int, ...], value: str | None, line: int) -> None:
    assert line_of(TOML, place, value) == line
