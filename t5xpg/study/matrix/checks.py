"""`make check` of a matrix: everything that can be known of each of its cells before anything expensive is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from t5xpg.base import paths
from t5xpg.base.paths import shown
from t5xpg.check import checks
from t5xpg.check.finding import Finding, report
from t5xpg.data.text.manifest import find_manifests
from t5xpg.data.vocab.sentinels import NAMED_TOKENS
from t5xpg.experiment import config
from t5xpg.run.directory import RunDirectory
from t5xpg.study.matrix import making
from t5xpg.study.matrix.cells import named
from t5xpg.study.matrix.plan import Cell, Plan


def check(experiment: str, plan: Plan, folder: Path) -> int:
    """Print what each cell needs and whether it is there; returns 0 where all can be trained, 1 otherwise.

    folder: of the runs. A vocabulary that is not there is no problem, as it is trained first; of the cells that need
    it, the rest is looked at as far as it does not depend on it. Raises UserError where the plan cannot be read.
    """
    findings = [_axes(plan), *_made_first(plan)]
    problems: dict[str, list[str]] = {}
    for cell in plan.cells():
        found = list(_cell(experiment, plan, cell, folder))
        for one in found:
            if one.problem:
                problems.setdefault(one.text, []).append(cell.name)
        findings += [one for one in found if not one.problem]
    findings += [Finding("cells", f"{text} (in {named(cells)})", problem=True) for text, cells in problems.items()]
    return report(findings)


def _axes(plan: Plan) -> Finding:
    counts = f"{len(plan.architectures)} architectures, {len(plan.objectives)} objectives, "
    left = sum(plan.reason(one.name, other.name) is not None for one in plan.architectures for other in plan.objectives)
    return Finding(
        "matrix",
        f"{shown(plan.file)}: {counts}{len(plan.vocabularies)} vocabularies, {len(plan.cells())} cells; {left} pairs "
        "left out, each with its reason",
    )


def _made_first(plan: Plan) -> Iterator[Finding]:
    """What `make sweep` makes before it trains."""
    if plan.dataset not in find_manifests(paths.data_directory()):
        yield Finding("data", f"{plan.dataset} is exported first: make data DATASET={plan.dataset}")
    for entry in plan.vocabularies:
        if not making.is_there(plan, entry):
            yield Finding("vocabs", f"{entry.trained_as} is trained first: {making.command(plan, entry)}")


def _cell(experiment: str, plan: Plan, cell: Cell, folder: Path) -> Iterator[Finding]:
    """The problems of a cell, or a line that says what it is."""
    settings, there = cell.vocabulary.settings, making.is_there(plan, cell.vocabulary)
    bindings = list(cell.bindings)
    if settings is not None and not there:  # the most ids that a task of it may have
        bindings.append(f"VOCAB_SIZE={settings.size + settings.extra_ids + len(NAMED_TOKENS)}")
    loaded, mistakes = config.examine(experiment, bindings, cell.gin_files)
    for mistake in mistakes:
        yield Finding("cells", mistake, problem=True)
    if loaded is None or mistakes:
        return
    directory = RunDirectory(folder / cell.name)
    found = list(checks.findings(loaded, directory, data=there, quick=True))
    problems = [one for one in found if one.problem]
    if problems:
        yield from problems
        return
    run = next(one.text for one in found if one.what == "run").partition(", in ")[0]
    lengths = "/".join(str(length) for length in loaded.experiment.lengths.values())
    facts = [
        f"{loaded.experiment.model.num_params:,} parameters",
        f"{loaded.experiment.train_dataset.batch_size} x {lengths}",
        f"{loaded.experiment.total_steps:,} steps",
        cell.task,
        run,
    ]
    yield Finding("cell", f"{cell.name}: {', '.join(facts)}")
