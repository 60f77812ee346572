"""Speedruns: the least time, and the least target tokens, to a validation loss. `make speedrun-check` trains an entry.

An entry is a gin file records/<entry>/*.gin in the experiment's folder. It claims that the mean loss over seeds is at
the target after its TRAIN_STEPS updates. The record.json beside it holds what was found.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from t5xpg.base import environment
from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import json_object_of, remove, sha256_of_file, write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.pages import render
from t5xpg.base.paths import shown
from t5xpg.experiment import config
from t5xpg.experiment.config import settings
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.known_tasks import known_task
from t5xpg.run import provenance
from t5xpg.run.records import read_jsonl, records_of_split
from t5xpg.run.report import Page, rounded
from t5xpg.run.results import collect, training_seconds, write_results
from t5xpg.run.results_page import OTHER_LOAD_ALLOWED
from t5xpg.study import launchers, runs
from t5xpg.study.plan_file import Plan
from t5xpg.study.runs import StudyRun
from t5xpg.study.study import FORMAT, PlannedExperiment

EXPERIMENT, RECORD_FILE = "speedrun", "record.json"
P = 0.01  # the probability that an entry counts whose expected loss is just the target
_FREE = ("eval_dataset.seed", "eval_dataset.metrics")  # what an entry may change; the seed is the run's
_SLOWER = 1.1  # a recorded time is confirmed up to this factor
_SHOWN = ("seed", "steps", "target_tokens", "seconds", "used_by_others", "nats_per_byte", "encoder_use")
Record = Mapping[str, Any]


class SpeedrunPlan(Plan):
    """The contents of speedrun.toml. target: the mean over seeds of the validation loss has to be at or below it, in
    nats per target byte. deviation: one standard deviation of that loss over seeds; None if it was not measured yet.
    """

    target: Annotated[float, Field(gt=0)]
    deviation: Annotated[float, Field(gt=0)] | None = None
    seeds: int = Field(3, ge=2)  # at least
    cores: int = Field(2, ge=1)

    @property
    def noise(self) -> float | None:
        """The least `margin` of a record, in nats: by chance alone, it is exceeded with probability `P`."""
        return None if self.deviation is None else statistics.NormalDist(0.0, self.deviation).inv_cdf(1.0 - P)


def margin(losses: Sequence[float], target: float) -> float:
    """(target - mean) * sqrt(n), in nats. If the expected loss is the target, this has mean 0 and the standard
    deviation of one loss, whatever n is (the rule of the NanoGPT speedrun, Jordan et al. 2024)."""
    return (target - statistics.fmean(losses)) * math.sqrt(len(losses))


def objections(plan: SpeedrunPlan, losses: Sequence[float | None]) -> Iterator[str]:
    """Yields reasons why losses, one of each seed at its end, make no record. A loss is None if it is not finite."""
    finite = [loss for loss in losses if loss is not None]
    if len(losses) < plan.seeds:
        yield f"{len(losses)} seeds, and at least {plan.seeds} are needed"
    if len(finite) < len(losses):
        yield f"{len(losses) - len(finite)} of {len(losses)} runs have no finite loss at their end"
    elif plan.noise is None:
        yield "the noise is not measured: deviation is missing in speedrun.toml"
    elif margin(finite, plan.target) < plan.noise:
        yield f"(target - mean) * sqrt(n) is {margin(finite, plan.target):+.4f} and does not clear {plan.noise:.4f}"


def rule_violations(entry: Experiment, rules: Experiment) -> Iterator[str]:
    """Yields an entry's violations of the rules. rules: the experiment that every entry includes."""
    actual, fixed = settings(entry), settings(rules)
    for name in sorted(actual.keys() | fixed.keys()):
        if name.startswith("eval_dataset") and name not in _FREE and actual.get(name) != fixed.get(name):
            yield f"{name} is {actual.get(name)!r}, and validation is fixed: {fixed.get(name)!r}"
    if entry.initial is not None or entry.teacher is not None:
        yield "it starts from a checkpoint, and pretrained weights are not allowed"
    if entry.selection is not None and entry.selection.patience is not None:
        yield "it ends early by its validation loss, and the number of steps is what an entry claims"
    train = entry.train_dataset
    text, trained_on = (
        row and row.dataset
        for row in (
            known_task(rules.eval_dataset.mixture_or_task_name),
            known_task(train.mixture_or_task_name, entry.needs),
        )
    )
    if (train.split, trained_on) != ("train", text):
        yield f"it trains on {train.split} of {train.mixture_or_task_name}, and may on train of {text} alone"


class Speedrun(PlannedExperiment[SpeedrunPlan]):
    """The entries of a speedrun, their gin files by their names, and their runs."""

    plan_file = "speedrun.toml"
    plan_model = SpeedrunPlan
    page = Page("speedrun.json", "speedrun", lambda board: render("speedrun.md.j2", board=board))

    def __init__(self, experiment: str, folder: Path) -> None:
        super().__init__(experiment, folder)
        self.entries = {file.parent.name: file for file in sorted(self.home.glob("records/*/*.gin"))}

    def runs_of(self, entry: str, seeds: Sequence[int]) -> list[StudyRun]:
        """The runs of an entry. Raises UserError where there is no such entry, or where it breaks the rules."""
        if entry not in self.entries:
            raise UserError(f"There is no entry {entry!r} in {shown(self.home)}/records.{nearest(entry, self.entries)}")
        file = str(self.entries[entry])
        if violations := list(rule_violations(config.load(file).experiment, config.load(self.experiment).experiment)):
            raise UserError("\n  ".join([f"{entry} is refused:", *violations]))
        folders = {seed: self.folder / f"{entry},seed={seed}" for seed in seeds}
        return [
            StudyRun(file, path, "entry", {"seed": seed}, [f"RANDOM_SEED={seed}"]) for seed, path in folders.items()
        ]

    def check(self, entry: str, seeds: Sequence[int] | None = None, *, record: bool = False) -> int:
        """Train an entry with these seeds (None: as many as are needed), judge it, and compare it with its record.json.

        An interrupted check continues, a finished one starts anew. record: write record.json; runs that a finished
        check has left are then used. Returns 0 if the entry is accepted, else 1. Raises UserError for an entry that
        breaks the rules, for another number of cores, and for a record of runs with code of more than one commit.
        """
        plan = self.plan
        entry_runs, file = self.runs_of(entry, seeds or range(plan.seeds)), self.home / "records" / entry / RECORD_FILE
        if (cores := environment.usable_cores()) != plan.cores:
            advice = f"Put this before the command: taskset --cpu-list 0-{plan.cores - 1}"
            raise UserError(f"A speedrun is run on {plan.cores} cores, and {cores} are used here. {advice}")
        claim = None if record else json_object_of(file)
        finished = self.folder / f"{entry}.check.json"
        with self.lock():
            for path in [*self.folder.glob(f"{entry},seed=*"), finished] if finished.exists() and not record else ():
                remove(path)
            runs.train(entry_runs, jobs=1, label=entry, launcher=launchers.LocalProcesses(1))
            write_json(finished, measured := self._record(entry, entry_runs))
        for name, found in (("here", measured), ("recorded", claim)) if claim else (("here", measured),):
            rows = [[name, *(str(one[each]) for each in _SHOWN)] for one in found["seeds"]]
            print("\n".join(aligned(["", *_SHOWN], rows, numbers_from=1)))
        if None not in (losses := _values(measured, "nats_per_byte")) and len(losses) > 1:
            comparison = f"(target - mean) * sqrt(n) is {margin(losses, plan.target):+.4f}"
            print(f"{comparison}, the standard deviation over {len(losses)} seeds {statistics.stdev(losses):.4f}")
        reasons = [*objections(plan, losses), *(_unconfirmed(claim, measured) if claim else ())]
        print(f"{entry} is {'refused: ' + '; '.join(reasons) if reasons else 'accepted'}", flush=True)
        if record and not reasons:
            provenance.require_commit(entry, measured["sources"]["training"], measured["sources"]["evaluation"])
            write_results(file, measured)
            print(f"written to {shown(file)}; the page: make report EXP={self.name}")
        return 1 if reasons else 0

    def _record(self, entry: str, entry_runs: Sequence[StudyRun]) -> dict[str, Any]:
        """The record of finished runs. How much they use their encoders is measured where it was not measured yet."""
        from t5xpg.evaluate import evaluation

        for run in entry_runs:
            if runs.outcome(run).last is not None and not evaluation.is_up_to_date(run.directory, run.steps):
                evaluation.evaluate(run.loaded, run.path)
        results = [collect(run.directory) for run in entry_runs]
        files = (self.home / f"{self.name}.gin", self.entries[entry])
        return {
            "format": FORMAT,
            "gin": {str(one.relative_to(self.home)): sha256_of_file(one) for one in files},
            "sources": {
                kind: [git for one in results for git in one["sources"][kind]] for kind in results[0]["sources"]
            },
            **{name: results[-1][name] for name in ("versions", "hardware")},
            "seeds": [_seed_record(run, one) for run, one in zip(entry_runs, results, strict=True)],
        }

    def publish(self, *, allow_changed: bool = False) -> Path:
        """Write the board and the README's block, from the records alone; returns the README's path."""
        plan = self.plan
        files = {name: file.with_name(RECORD_FILE) for name, file in self.entries.items()}
        board: dict[str, Any] = {
            "format": FORMAT,
            "experiment": self.name,
            **plan.model_dump(),
            "noise": rounded(plan.noise),
            "toolchain": _toolchain(environment.versions()),
            "entries": [],
            "not_run": [name for name, file in files.items() if not file.exists()],
        }
        for name, record in ((name, json_object_of(file)) for name, file in files.items() if file.exists()):
            reasons = list(objections(plan, _values(record, "nats_per_byte")))
            gin = {self.home / file: digest for file, digest in record["gin"].items()}
            if not all(file.exists() and sha256_of_file(file) == digest for file, digest in gin.items()):
                reasons.append("its gin file or that of the rules has changed: to be run again")
            note = "to be timed again" if _toolchain(record["versions"]) != board["toolchain"] else ""
            board["entries"] += [{
                "name": name,
                "file": str(self.entries[name].relative_to(self.home)),
                "commit": provenance.format_commit(record["sources"]["training"][-1]),
                "cpu": record["hardware"]["cpu"],
                "seeds": [{each: one[each] for each in _SHOWN} for one in record["seeds"]],
                "time_left_out": note or ("" if _ran_alone(record) else "other programs were running"),
                "objections": reasons,
            }]  # fmt: skip
        return self.page.write(self.home, board)


def _seed_record(run: StudyRun, results: Record) -> dict[str, Any]:
    """A run's end, and its curve: for each validation the step, and the target tokens and training seconds so far."""
    train = records_of_split(read_jsonl(run.directory.metrics_jsonl), "train")
    timing, curve = read_jsonl(run.directory.timing_jsonl), results["curves"]["validation"]
    seconds = [training_seconds([one for one in timing if one["step"] <= step]) or 0.0 for step in curve["step"]]
    tokens = [sum(one["target_tokens"] for one in train if one["step"] <= step) for step in curve["step"]]
    return {
        "seed": run.labels["seed"],
        **{name: results[name] for name in ("steps", "target_tokens")},
        "seconds": seconds[-1],
        "used_by_others": results["timing"]["used_by_others"],
        "nats_per_byte": curve["nats_per_byte"][-1] if curve["step"][-1] == run.steps else None,
        "encoder_use": (results["evaluation"] or {}).get("encoder_use"),
        "curve": {**curve, "target_tokens": tokens, "seconds": seconds},
    }


def _values(record: Record, name: str) -> list[Any]:
    return [one[name] for one in record["seeds"]]


def _toolchain(versions: Record) -> dict[str, Any]:
    """The versions that decide how long an update takes, besides the machine and this project's code."""
    return {name: version for name, version in versions.items() if name != "t5xpg"}


def _ran_alone(record: Record) -> bool:
    return all((load or 0.0) <= OTHER_LOAD_ALLOWED for load in _values(record, "used_by_others"))


def _unconfirmed(claim: Record, measured: Record) -> Iterator[str]:
    """Yields the claims of a record that a check did not confirm. Times are compared only on the same kind of CPU,
    with the same packages, and if no other programs were running."""
    if claim["gin"] != measured["gin"]:
        yield "its gin file or that of the rules is not the recorded one: record it anew with RECORD=1"
    same_cpu = environment.is_same_cpu(claim["hardware"]["cpu"], measured["hardware"]["cpu"])
    conditions = [(_toolchain(one["versions"]), _ran_alone(one)) for one in (claim, measured)]
    claimed, seconds = (statistics.fmean(_values(one, "seconds")) for one in (claim, measured))
    if same_cpu and conditions[0] == conditions[1] and _ran_alone(measured) and seconds > _SLOWER * claimed:
        yield f"it takes {seconds:,.0f} s, and {claimed:,.0f} s are recorded"
