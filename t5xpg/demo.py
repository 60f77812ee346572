"""`make demo`: the whole chain of one small experiment, each part done only where it is missing."""

from __future__ import annotations

import time

from t5xpg import config, evaluation, inference, paths, report, training
from t5xpg.files import read_json
from t5xpg.progress import duration
from t5xpg.rundir import RunDirectory
from t5xpg.training import shown

EXPERIMENT = "byt5_tiny_demo"
NUM_SHOWN = 3
WIDTH_SHOWN = 150


def run() -> int:
    """Export, cache, train, evaluate, fill in blanks, report. Returns the exit code."""
    began = time.perf_counter()
    loaded = config.load(EXPERIMENT)
    path = paths.runs_directory() / EXPERIMENT
    directory = RunDirectory(path)
    code = training.train(loaded, path)
    if code:
        return code
    if evaluation.is_up_to_date(directory, loaded.experiment.total_steps):
        print(f"evaluation: up to date, in {shown(directory.evaluation_json)}")
    else:
        evaluation.evaluate(loaded, path)
    print("\nblanks in text of the validation split, which it has not seen:")
    for sample in read_json(directory.samples_json)[:NUM_SHOWN]:
        print()
        inference.print_filled(sample["input"], sample["prediction"])
        print(f"was         {sample['target']}")
    readme = report.write_report(directory, path / "report", paths.EXPERIMENTS / EXPERIMENT / report.RESULTS_FILE)
    print(f"\nreport: {shown(readme)}\ncurve:  {shown(readme.parent / report.CURVE_FILE)}")
    print(f"done in {duration(time.perf_counter() - began)}", flush=True)
    return 0
