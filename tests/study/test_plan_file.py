"""Reading sweep.toml and matrix.toml: the runs that they stand for, and every mistake in them with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.study.matrix.matrix import Matrix
from t5xpg.study.matrix.plan import MatrixPlan
from t5xpg.study.plan_file import Plan, read
from t5xpg.study.sweep import judged_tasks
from t5xpg.study.sweep.plan import SweepPlan
from t5xpg.study.sweep.sweep import Sweep
from tests.refusals import refused
from tests.study.matrix.test_matrix import PLAN as MATRIX
from tests.study.sweep.test_sweep import JUDGED, PLAN, PREFIX_LM, SPANS

SWEEP = f"""{PLAN.replace("seeds = [0]", "seeds = [0, 1]")}
[short]
recipe = "prefix_lm"
steps = 800
seeds = [0, 1]
"""


def read_text(folder: Path, text: str, model: type[Plan]) -> Any:
    (folder / "plan.toml").write_text(text, encoding="utf-8")
    return read(folder / "plan.toml", model)


def test_what_the_experiment_needs_is_made_first(own_place: Path) -> None:
    gin = own_place / "small.gin"
    needs = "from t5xpg.experiment import needs\nNEEDS = (@needs.Data(),)\n"
    needs += "needs.Data:\n  dataset = 'small'\n  files = {'train': 'absent.txt', 'validation': 'absent.txt'}\n"
    gin.write_text(f"{gin.read_text()}WARMUP_STEPS = 1\n{needs}")
    before, _, after = MATRIX.partition("[vocabularies.bpe]")
    bytes_alone = f"{before}[trained]{after.partition('[trained]')[2]}"
    for plan, text in ((Sweep, PLAN), (Matrix, bytes_alone)):
        (own_place / plan.plan_file).write_text(text, encoding="utf-8")
    matrix, sweep = Matrix(str(gin), own_place / "cells"), Sweep(str(gin), own_place / "recipes")
    with refused("absent.txt"):
        next(iter(matrix.stages("encoder_decoder,span_corruption,bytes")))
    with refused("absent.txt"):
        judged_tasks.require_tasks(sweep.long_runs(sweep.first_candidates), JUDGED)


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    (tmp_path / "small.gin").write_text("")
    (tmp_path / Sweep.plan_file).write_text(SWEEP, encoding="utf-8")
    (tmp_path / Matrix.plan_file).write_text(MATRIX, encoding="utf-8")
    return str(tmp_path / "small.gin")


def test_a_sweep_is_its_runs(experiment: str, tmp_path: Path) -> None:
    sweep = Sweep(experiment, tmp_path)
    search = sweep.search_runs()
    candidate = f"MIXTURE_OR_TASK_NAME={PREFIX_LM} WARMUP_STEPS=1 LEARNING_RATE="
    assert [tuple(run.labels.values()) for run in search] == [
        ("prefix_lm", f"{candidate}{rate}", 3, 0) for rate in ("1e30", "0.02")
    ]
    values = [*f"{candidate}0.02".split(), "TRAIN_STEPS=3", "RANDOM_SEED=0"]
    assert search[1].overrides == ["--gin_file=gin/optimizers/muon.gin", *(f"--gin.{value}" for value in values)]
    long = sweep.long_runs(sweep.first_candidates)
    recipes = [("final", "spans", 4), ("final", "prefix_lm", 4), ("short", "prefix_lm", 800)]
    labels = [tuple(run.labels[name] for name in ("recipe", "steps", "seed")) for run in long]
    found = [(run.stage, *one) for run, one in zip(long, labels, strict=True)]
    assert found == [(*one, seed) for seed in (0, 1) for one in recipes]
    names = {run.name for run in [*search, *long]}
    assert len(names) == 8, "a folder of its own each"
    assert not any(character in name for name in names for character in "/ @")


def test_architectures_are_compared_at_equal_operations(tmp_path: Path) -> None:
    sweep, flops = Sweep("modern_tiny", tmp_path), {}
    for run in (run for run in sweep.long_runs(sweep.first_candidates) if run.labels["seed"] == 0):
        lengths = run.experiment.train_dataset.task_feature_lengths
        flops[run.labels["recipe"]] = run.experiment.flops_per_example(lengths)
    assert flops == {recipe: pytest.approx(flops["t5_1_1"], rel=5e-3) for recipe in sweep.plan.recipes}


def test_what_a_sweep_does_not_say_has_defaults(experiment: str, tmp_path: Path) -> None:
    plan = 'final.steps = 300\nrecipes.rates.candidates = ["LEARNING_RATE=0.005", "LEARNING_RATE=0.02"]\n'
    (tmp_path / Sweep.plan_file).write_text(plan, encoding="utf-8")
    sweep = Sweep(experiment, tmp_path)
    assert (sweep.plan.reference, sweep.plan.decides.metric) == ("rates", "validation/nats_per_byte")
    (long,) = sweep.long_runs(sweep.first_candidates)
    assert long.path in [run.path for run in sweep.search_runs()], "it is trained once"
    assert sweep.collect([])["runs"] == 2


def test_long_settings_have_short_names(experiment: str, tmp_path: Path) -> None:
    candidates = [f"LEARNING_RATE=0.{'0' * 300}{digit}" for digit in (1, 2)]
    plan = f"final.steps = 3\nrecipes.rates.candidates = {json.dumps(candidates)}\n"
    (tmp_path / Sweep.plan_file).write_text(plan, encoding="utf-8")
    names = {run.name for run in Sweep(experiment, tmp_path).search_runs()}
    assert len(names) == 2
    assert all(len(f"{name}.log".encode()) < 255 for name in names)


def test_a_matrix_is_its_cells(experiment: str, tmp_path: Path) -> None:
    matrix = Matrix(experiment, tmp_path)
    runs = matrix.runs_of_cells()
    cells = ["encoder_decoder,span_corruption", "decoder_prefix_lm,prefix_lm"]
    assert [run.name for run in runs] == [f"{cell},{vocabulary}" for vocabulary in ("bytes", "bpe") for cell in cells]
    tasks = ["small_span_corruption", "small_prefix_lm"]
    assert [run.labels["task"] for run in runs] == [*tasks, *(f"{task}_small_bpe_80" for task in tasks)]
    assert runs[1].gin_files == ["gin/architectures/decoder_only.gin", "gin/objectives/prefix_lm.gin"]
    assert runs[1].bindings == [
        "MIXTURE_OR_TASK_NAME=small_prefix_lm", "FEATURE_CONVERTER=PrefixLMFeatureConverter", "PACK=True",
        "TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 32}",
    ]  # fmt: skip
    assert [tuple(one.values()) for one in matrix.plan.left_out_pairs()] == [
        ("encoder_decoder", "prefix_lm", "It could."), ("decoder_prefix_lm", "span_corruption", "So could this."),
    ]  # fmt: skip


def test_a_vocabulary_is_made_with_its_settings(tmp_path: Path) -> None:
    command = "make vocab DATASET=small SIZE=80 MODEL=bpe BYTE_FALLBACK=1"
    for more, name, ending in (("", "bpe_80", ""), (', name = "mine"', "mine", " VOCAB=mine")):
        found = read_text(tmp_path, MATRIX.replace("size = 80", f"size = 80, byte_fallback = true{more}"), MatrixPlan)
        settings = VocabularySettings(size=80, model="bpe", byte_fallback=True)
        assert found.vocabularies["bpe"].train == (name, settings)
        assert [found.vocabulary_command(one) for one in found.vocabularies] == [None, command + ending]


SWEEP_MISTAKES = [
    ("steps = 3", "steps = 0", "[search] steps"),
    ("seed = 0", "sead = 0", "Did you mean seed?"),
    ('reference = "spans"', 'reference = "span"', "Did you mean spans?"),
    ("[search]", 'fit = {recipes = ["spans", "prefix_lm", "span"], held_out = "spans"}\n[search]', "'span'"),
    ("[recipes.prefix_lm]", "[recipes.'Fast one']", "[recipes] Fast one"),
    (f'["MIXTURE_OR_TASK_NAME={SPANS}"]', "[]", "[recipes.spans] candidates"),
    (f'["MIXTURE_OR_TASK_NAME={SPANS}"]', '["A=1", "A=1"]', "[recipes.spans] candidates"),
    (f"={SPANS}", f" {SPANS}", "NAME=value"),
    ("muon.gin", "muonn.gin", "Did you mean gin/optimizers/muon.gin"),
    ("steps = 800", "steps = 4", "[short] steps = 4"),
    (json.dumps(JUDGED), '["one", "one"]', "[judged] tasks"),
    ("seeds = [0, 1]\nref", "seeds = [0, 0]\nref", "[final] seeds"),
    ("[search]", 'metric = "validation/acuracy"\n[search]', "Did you mean validation/accuracy"),
    ("[search]", 'metric = "my_task/bleu"\n[search]', "mode"),
]
LAST = 'decoder_prefix_lm = ["prefix_lm"'
MATRIX_MISTAKES = [
    ("decoder_prefix_lm = [", "decoder_prefix_ml = [", "Did you mean decoder_pr"),
    ("objectives.prefix_lm]", "objectives.prefix_ml]", "Did you mean prefix_lm"),
    (LAST, f'{LAST}, "span_corruption"', "more than once"),
    ('"PACK=True"', '"PACK True"', "NAME=value"),
    ('title = "span', 'titel = "span', "Did you mean title?"),
    ('model = "bpe"', 'model = "bqe"', "Did you mean bpe?"),
    ("size = 80", 'size = "80"', "[vocabularies.bpe] train"),
    ('dataset = "small"', "dataset = 3", "dataset"),
    ("[trained]", "[trained", "plan.toml"),
]


def test_mistakes_are_said_with_their_lines(tmp_path: Path) -> None:
    for text, model, mistakes in ((SWEEP, SweepPlan, SWEEP_MISTAKES), (MATRIX, MatrixPlan, MATRIX_MISTAKES)):
        for old, new, named in mistakes:
            assert text.count(old) == 1
            line = text[: text.index(old)].count("\n") + 1
            with refused(named, str(tmp_path / "plan.toml"), f"line {line}"):
                read_text(tmp_path, text.replace(old, new), model)

    with refused("decoder_prefix_lm with span_corruption"):  # every pair is trained or left out
        read_text(tmp_path, MATRIX[: MATRIX.rindex("[[left_out]]")], MatrixPlan)
    text = SWEEP.replace("seed = 0", "sead = 0").replace('title = "Prefix', 'titel = "Prefix')
    with refused("line 4: [search] sead", "line 19: [recipes.prefix_lm] titel"):  # all at once
        read_text(tmp_path, text, SweepPlan)
