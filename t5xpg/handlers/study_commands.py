"""Many runs, and pages: the functions of the commands that publish, repeat, prove and show them."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from t5xpg import arguments
from t5xpg.base import paths
from t5xpg.base.errors import UserError


def _demo(options: Namespace) -> int:
    from t5xpg.study import demo

    options.experiment = demo.EXPERIMENT
    return demo.run(*arguments.load_with_run(options))


def _report(options: Namespace) -> None:
    from t5xpg.run import report
    from t5xpg.run.directory import RunDirectory
    from t5xpg.study import kinds, references

    loaded, run = arguments.load_with_run(options)
    names, added_names = arguments.words(options.runs or "", "RUNS"), arguments.words(options.add or "", "ADD")
    if sum(map(bool, (options.run, names, added_names))) > 1:
        raise UserError("RUN=…, RUNS=… and ADD=… each name all runs: give one of them.")
    study = kinds.study_of(options.experiment, arguments.run_directory(options, loaded.name))
    if study is not None:
        arguments.without_overrides(options, arguments.FIXED_IN_STUDY)
        if names or added_names:
            raise UserError(f"RUNS=…, ADD=…: {loaded.name} says itself which runs it has ({study.plan_file}).")
        study.publish(allow_changed=options.allow_changed)
        return
    runs = [RunDirectory(arguments.pull_run(name)) for name in names or added_names] or [RunDirectory(run)]
    home, allow_changed = loaded.gin_file.parent, options.allow_changed
    first, seeds = (None, runs) if added_names else (runs[0], runs[1:])
    report.publish(first, home, seeds=seeds, references=references.of_experiment(home), allow_changed=allow_changed)


def _site(options: Namespace) -> int:
    from t5xpg.site import build, serve

    page = build.build(arguments.path_of(options.output) or paths.WORKSPACE / "site")
    print(f"site: {paths.shown(page)}", flush=True)
    return serve.serve(page.parent) if options.serve else 0


def _watch(options: Namespace) -> int:
    from t5xpg.site import serve

    loaded, run = arguments.load_with_run(options)
    return serve.watch(loaded.name, run, paths.WORKSPACE / "site")


def _reproduce(options: Namespace) -> int:
    from t5xpg.study.reproduce import reproduce

    arguments.without_overrides(options, "The published run had no overrides: reproduce it without GIN.")
    loaded = arguments.load_experiment(options)
    folder = arguments.run_directory(options, f"{loaded.name}_reproduced")
    return reproduce.reproduce(loaded, folder, steps=options.steps)


def _verify_claim(options: Namespace) -> int:
    from t5xpg.experiment import config
    from t5xpg.study.reproduce import claim

    if (options.experiment is None) == (options.receipt is None):
        raise UserError("Give one of EXP=byt5_tiny, to verify, and RECEIPT=receipt.json, to check.")
    if options.receipt is not None:
        if names := arguments.given_values(options, "steps", "output"):
            raise UserError(f"{next(iter(names)).upper()}=… says nothing here: see `make help verify-claim`.")
        return claim.check(Path(options.receipt))
    name, _ = config.find_experiment(options.experiment)
    output = arguments.path_of(options.output) or paths.runs_directory() / f"{name}_claim"
    return claim.verify(options.experiment, output, steps=options.steps)


def _sweep(options: Namespace) -> None:
    from t5xpg.experiment import config
    from t5xpg.study import kinds, launchers
    from t5xpg.study.study import Study
    from t5xpg.study.sweep.sweep import Sweep

    arguments.without_overrides(options, arguments.FIXED_IN_STUDY)
    name, _ = config.find_experiment(options.experiment)
    study = kinds.study_of(options.experiment, arguments.run_directory(options, name))
    if not isinstance(study, Study):
        raise UserError(f"{name} is no sweep and no matrix ({kinds.PLAN_FILES}): make train EXP={options.experiment}")
    if options.times:
        if options.jobs != 1 or options.launcher != launchers.HERE or options.launcher_options or options.cells:
            raise UserError("TIMES=1 measures here, one recipe after the other: leave out JOBS, LAUNCHER and CELLS.")
        if not isinstance(study, Sweep):
            raise UserError("TIMES=1 is for the recipes of a sweep.toml: the cells of a matrix do different work.")
        study.time_steps()
        return
    launcher = launchers.launcher(options.launcher, options.launcher_options, options.jobs, study.folder / "jobs")
    study.train(jobs=options.jobs, cells=options.cells, launcher=launcher)


def _speedrun_check(options: Namespace) -> int:
    from t5xpg.study.speedrun import EXPERIMENT, Speedrun

    speedrun = Speedrun(EXPERIMENT, arguments.run_directory(options, EXPERIMENT))
    return speedrun.check(options.entry, options.seeds, record=options.record)


def _prove_resume(options: Namespace) -> int:
    from t5xpg.study.proofs import resume

    overrides, path = _proof(options, "proof")
    more = {"seed": options.kill_seed, "recorded": arguments.path_of(options.recorded)}
    return resume.prove_resume(options.experiment, overrides, kills=options.kills, path=path, **more)


def _prove_hosts(options: Namespace) -> int:
    from t5xpg.study.proofs import hosts

    overrides, path = _proof(options, "hosts")
    return hosts.prove_hosts(options.experiment, overrides, processes=options.processes, path=path)


def _proof(options: Namespace, name: str) -> tuple[list[str], Path]:
    """The overrides, as arguments for the runs that a proof starts, and the folder of the proof."""
    from t5xpg.experiment import config

    experiment, _ = config.find_experiment(options.experiment)
    overrides, files = arguments.overrides(options)
    typed = [*(f"--gin_file={file}" for file in files), *(f"--gin.{override}" for override in overrides)]
    return typed, arguments.run_directory(options, f"{experiment}_{name}")


HANDLERS: Mapping[str, Callable[[Namespace], int | None]] = {
    "demo": _demo,
    "report": _report,
    "site": _site,
    "watch": _watch,
    "reproduce": _reproduce,
    "verify-claim": _verify_claim,
    "sweep": _sweep,
    "speedrun-check": _speedrun_check,
    "prove-resume": _prove_resume,
    "prove-hosts": _prove_hosts,
}
