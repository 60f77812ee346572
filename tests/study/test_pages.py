"""The pages of sweeps and matrices: the published ones, and those of boards that were changed here."""

from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.base.files import read_json
from t5xpg.experiment import config
from t5xpg.run.best import BestMetric
from t5xpg.run.report import Page
from t5xpg.run.results import write_results
from t5xpg.study import kinds, runs
from t5xpg.study.matrix.board import PAGE as MATRIX_PAGE
from t5xpg.study.matrix.board import settings_digest
from t5xpg.study.matrix.matrix import Matrix
from t5xpg.study.sweep import step_times
from t5xpg.study.sweep.board import fit_law, last_value, steps_to
from t5xpg.study.sweep.page import PAGE as SWEEP_PAGE
from t5xpg.study.sweep.sweep import Sweep
from tests.refusals import assert_named, program_refused, refused
from tests.written_pages import wrong_files

BOARDS = [(kind.page, file) for kind in kinds.KINDS for file in paths.EXPERIMENTS.glob(f"*/{kind.page.board_file}")]


@pytest.mark.parametrize(("page", "file"), BOARDS, ids=[file.parent.name for _, file in BOARDS])
def test_published_pages_are_those_of_their_boards(page: Page, file: Path, tmp_path: Path) -> None:
    assert wrong_files(file.parent, page) == []
    write_results(tmp_path / file.name, read_json(file))
    assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_cells_that_are_not_done_or_diverged_say_so() -> None:
    matrix = read_json(paths.EXPERIMENTS / "matrix_tiny" / "matrix.json")
    first, second = matrix["cells"][:2]
    nothing = dict.fromkeys(("loss", "unigram", "of_text", "learned"))
    first.update(nothing, done=False)
    second.update(nothing, diverged_at=7)
    matrix["runs_done"] -= 1
    assert_named(MATRIX_PAGE.block(matrix), ["| encoder-decoder | bytes | - | not finite after step 7 |", "41 of 42"])
    # no better than unigrams is not bold
    learned = next(cell for cell in matrix["cells"] if cell["learned"])
    for is_bold in (True, False):
        learned["learned"] = is_bold
        assert (f"**{learned['of_text']['loss']:.3f}** / " in MATRIX_PAGE.block(matrix)) == is_bold


def test_a_law_is_that_of_the_losses_that_are_shown() -> None:
    board = read_json(paths.EXPERIMENTS / "widths_tiny" / "leaderboard.json")
    fit, losses = board["fit"], {entry["recipe"]: entry["mean_loss"] for entry in board["final"]}
    law = fit_law([fit["num_params"][name] for name in fit["recipes"]], [losses[name] for name in fit["recipes"]])
    assert fit["law"] == pytest.approx(law._asdict())
    size, measured = fit["num_params"][fit["held_out"]], losses[fit["held_out"]]
    assert fit["predicted"] == pytest.approx(law.loss(size), abs=1e-6)
    board["fit"]["predicted"] = 1.03 * measured
    assert_named(SWEEP_PAGE.block(board), [f"{measured:.3f}", "3.0%"])


def test_the_published_matrix_is_that_of_its_plan(tmp_path: Path) -> None:
    matrix = Matrix("matrix_tiny", tmp_path)
    found = read_json(matrix.home / Matrix.page.board_file)
    names = [",".join(cell[axis] for axis in ("architecture", "objective", "vocabulary")) for cell in found["cells"]]
    assert found["runs_done"] == found["runs"] == len(names)
    planned = matrix.runs_of_cells()
    assert names == [run.name for run in planned]
    for run, cell in zip(planned, found["cells"], strict=True):
        if run.labels["vocabulary"] == "bytes":  # the others take their sizes from vocabularies that were made
            assert cell["steps"] == run.steps
            assert cell["num_params"] == run.experiment.model.num_params
            assert cell["lengths"] == dict(run.experiment.lengths)
            assert cell["settings"] == settings_digest(run.experiment), "train it again: gin has changed"


def test_times_of_other_recipes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep("optimizers_tiny", tmp_path)
    best = sweep.first_candidates
    monkeypatch.setattr(Sweep, "best_candidates", lambda _: best)
    monkeypatch.setattr(
        step_times, "measure", lambda runs: dict.fromkeys(("seconds", "fastest"), dict.fromkeys(runs, 1))
    )
    sweep.time_steps()
    assert sweep.collect([])["step_times"]["seconds"].keys() == sweep.plan.recipes.keys()
    best = {**best, "muon": "LEARNING_RATE=0.5"}
    assert sweep.collect([])["step_times"] is None


def test_the_steps_to_the_reference_are_the_first_as_low() -> None:
    losses = ((0, 6.0), (50, 2.0), (100, 1.4), (150, 1.5))
    assert [steps_to(losses, target, BestMetric()) for target in (1.5, 1.0, None)] == [100, None, None]
    assert steps_to(losses, 1.5, BestMetric("validation/accuracy")) == 0


def test_a_run_is_judged_by_the_metric_at_its_end() -> None:
    measured = [(4, {"validation/loss": 1.0}), (4, {"my_task/bleu": 30.0}), (8, {"my_task/bleu": 20.0})]
    found = runs.Outcome(8, [{"step": 8}], done=True, measured=measured)
    assert last_value(found, "my_task/bleu") == 20.0
    assert found.curve("my_task/bleu") == [(4, 30.0), (8, 20.0)]
    with refused("Did you mean my_task/bleu"):
        last_value(found, "my_task/blue")


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    program_refused(capsys, ["sweep", "optimizers_tiny", "--cells=*,lm,*"], "CELLS=", "matrix.toml")
    program_refused(capsys, ["sweep", "byt5_tiny"], "sweep.toml or matrix.toml")


def test_ul2_tiny_compares_at_equal_steps_and_lengths(tmp_path: Path) -> None:
    sweep = Sweep("ul2_tiny", tmp_path)
    assert sweep.plan.judged is not None
    compared = [config.settings(run.experiment) for run in sweep.long_runs(sweep.first_candidates)]
    tasks = [settings.pop("train_dataset.mixture_or_task_name") for settings in compared]
    assert set(tasks) < set(sweep.plan.judged.tasks)
    assert compared[0] == compared[1], "what they are trained on is all that differs"
