"""`make demo`: the whole chain of one small experiment, each part done only where it is missing."""

import time
from pathlib import Path

from t5xpg.base import paths
from t5xpg.base.files import read_json
from t5xpg.base.progress import duration
from t5xpg.check import checks
from t5xpg.data.vocab.sentinels import excerpt
from t5xpg.evaluate import evaluation, infer
from t5xpg.experiment.config import LoadedConfig
from t5xpg.run import report
from t5xpg.run.directory import RunDirectory
from t5xpg.train import training

EXPERIMENT = "byt5_tiny_demo"
NUM_SHOWN = 4
CONTEXT = 70  # characters shown around a blank


def run(loaded: LoadedConfig, path: Path) -> int:
    """Export, cache, train, evaluate, fill in blanks, report, in the run directory `path`. Returns the exit code."""
    began = time.perf_counter()
    directory = RunDirectory(path)
    checks.require(loaded, directory)
    code = training.train(loaded, path)
    if code:
        return code
    if evaluation.is_up_to_date(directory, loaded.experiment.total_steps):
        print(f"evaluation: up to date, in {paths.shown(directory.evaluation_json)}")
    else:
        evaluation.evaluate(loaded, path)
    print("\nblanks in text of the validation split, which it has not seen:")
    for sample in read_json(directory.samples_json)[:NUM_SHOWN]:
        infer.print_sample(excerpt(sample["input"], CONTEXT), sample["prediction"], sample["target"])
    print()
    report.write_report(directory, directory.report, paths.EXPERIMENTS / loaded.name / report.RESULTS_FILE)
    print(f"done in {duration(time.perf_counter() - began)}", flush=True)
    return 0
