"""Sweeps: every candidate of every recipe is trained briefly, and the best of each for longer, with several seeds."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_of, write_json
from t5xpg.base.markdown import decimals
from t5xpg.base.paths import shown
from t5xpg.run.command_options import options_for
from t5xpg.run.report import Board
from t5xpg.study.runs import StudyRun, outcome
from t5xpg.study.study import Study
from t5xpg.study.sweep import judged_tasks
from t5xpg.study.sweep.board import last_value, results
from t5xpg.study.sweep.page import PAGE, steps_text
from t5xpg.study.sweep.plan import SweepPlan

_LONGEST = 180  # characters of settings in the name of a run's folder; file systems take names of 255 bytes


class Sweep(Study[SweepPlan]):
    """A sweep with its runs."""

    plan_file = "sweep.toml"
    plan_model = SweepPlan
    page = PAGE

    @property
    def _times_file(self) -> Path:
        return self.folder / "step_times.json"

    def search_runs(self) -> list[StudyRun]:
        """A run of every candidate of every recipe; a recipe with one candidate needs no search."""
        steps, seed = self.plan.search.steps or self.plan.final.steps, self.plan.search.seed
        return [
            self._run("search", name, candidate, steps, seed)
            for name, recipe in self.plan.recipes.items()
            if len(recipe.candidates) > 1
            for candidate in recipe.candidates
        ]

    def long_runs(self, chosen: Mapping[str, str]) -> list[StudyRun]:
        """The final and the short runs, seed by seed. chosen: the candidate of each recipe that they are made with."""
        final, short = self.plan.final, self.plan.short
        specs = [("final", name, final.steps, seed) for name in self.plan.recipes for seed in final.seeds]
        specs += [] if short is None else [("short", short.recipe, short.steps, seed) for seed in short.seeds]
        ordered = sorted(specs, key=lambda spec: spec[-1])
        return [self._run(stage, name, chosen[name], steps, seed) for stage, name, steps, seed in ordered]

    def _run(self, stage: str, recipe: str, candidate: str, steps: int, seed: int) -> StudyRun:
        settings = re.sub(r"[^A-Za-z0-9_.=+-]+", ",", candidate)
        if len(settings) > _LONGEST:
            settings = f"{settings[:_LONGEST]},{hashlib.sha256(candidate.encode()).hexdigest()[:8]}"
        gin_file = self.plan.recipes[recipe].gin_file
        return StudyRun(
            self.experiment,
            # the name depends on this run alone, whatever else the plan holds
            self.folder / f"{recipe},{settings},steps={steps},seed={seed}",
            stage,
            {"recipe": recipe, "candidate": candidate, "steps": steps, "seed": seed},
            [*candidate.split(), f"TRAIN_STEPS={steps}", f"RANDOM_SEED={seed}"],
            [] if gin_file is None else [gin_file],
        )

    @property
    def first_candidates(self) -> dict[str, str]:
        return {name: recipe.candidates[0] for name, recipe in self.plan.recipes.items()}

    def best_candidates(self) -> dict[str, str] | None:
        """The candidate of each recipe that is the best at the end of its search; None while any search is not done."""
        metric = self.plan.decides
        best: dict[str, str] = self.first_candidates
        values: dict[str, float | None] = dict.fromkeys(self.plan.recipes)
        for run in self.search_runs():
            run_outcome, recipe = outcome(run), run.labels["recipe"]
            if not run_outcome.done:
                return None
            value = last_value(run_outcome, metric.metric)
            if metric.better(value, values[recipe]):
                best[recipe], values[recipe] = run.labels["candidate"], value
        return best

    def runs(self) -> list[StudyRun]:
        chosen = self.best_candidates()
        return [*self.search_runs(), *(self.long_runs(chosen) if chosen is not None else [])]

    def stages(self, cells: str | None) -> Iterator[Sequence[StudyRun]]:
        tasks = self.plan.judged.tasks if self.plan.judged is not None else []
        if not self.plan.decides.of_validation:
            for run in self.long_runs(self.first_candidates):
                if run.experiment.infer_eval_period is None:
                    raise UserError(
                        f"{shown(self.plan_path)}: metric is {self.plan.metric!r}, which is measured every "
                        f"INFER_EVAL_PERIOD updates. Set INFER_EVAL_PERIOD in {self.name}."
                    )
        judged_tasks.require_tasks(self.long_runs(self.first_candidates), tasks)
        yield self.search_runs()
        chosen = self.best_candidates()
        assert chosen is not None, "the search is done"
        yield (long_runs := self.long_runs(chosen))
        judged_tasks.measure([run for run in long_runs if run.stage == "final"], tasks)

    def results(self, runs: Sequence[StudyRun]) -> Board:
        chosen = self.best_candidates()
        times = dict(json_object_of(self._times_file)) or None
        if times is not None and (chosen is None or times.pop("runs", None) != _run_names(self._timed(chosen))):
            times = None  # a recipe was added or changed since: measured together, or not at all
        planned_runs = [*self.search_runs(), *self.long_runs(self.first_candidates)]
        count = len({run.path for run in planned_runs})
        return results(self.plan, runs, chosen, count, times)

    def _timed(self, chosen: Mapping[str, str]) -> dict[str, StudyRun]:
        """The final run of each recipe with the first seed."""
        final = [run for run in self.long_runs(chosen) if run.stage == "final"]
        return {run.labels["recipe"]: run for run in final[: len(chosen)]}

    def summary(self, board: Board) -> Iterator[str]:
        for entry in board["final"]:
            losses = ", ".join(map(decimals, entry["loss"]))
            yield f"{entry['recipe']} ({entry['candidate']}): {losses} after {steps_text(board, entry['steps'])}"

    def time_steps(self) -> None:
        """Measure how long a step of each recipe takes, and keep it for the board."""
        from t5xpg.study.sweep import step_times

        chosen = self.best_candidates()
        if chosen is None:
            options = options_for(self.experiment, self.folder)
            raise UserError(f"The search is not done in {shown(self.folder)}. Train first: make sweep {options}")
        timed = self._timed(chosen)
        measured = step_times.measure(timed)
        write_json(self._times_file, measured | {"runs": _run_names(timed)})
        for recipe, seconds in measured["seconds"].items():
            print(f"{recipe}: {1000 * seconds:,.0f} ms a step (fastest {1000 * measured['fastest'][recipe]:,.0f})")


def _run_names(runs: Mapping[str, StudyRun]) -> dict[str, str]:
    return {recipe: run.name for recipe, run in runs.items()}
