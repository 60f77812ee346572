"""`make demo`: the whole chain of one small experiment, each part done only where it is missing."""

import time
from collections.abc import Sequence
from pathlib import Path

from t5xpg.base import paths
from t5xpg.base.files import read_json
from t5xpg.base.markdown import aligned
from t5xpg.base.progress import duration
from t5xpg.check import checks
from t5xpg.data.vocab.sentinels import excerpt
from t5xpg.evaluate import blanks, evaluation, infer
from t5xpg.experiment.config import LoadedConfig
from t5xpg.run import report
from t5xpg.run.directory import RunDirectory
from t5xpg.run.numbers import filled_rows
from t5xpg.run.results import Record
from t5xpg.train.train import train

EXPERIMENT = "demo"
NUM_SHOWN = 6
CONTEXT = 50  # characters shown around a blank


def run(loaded: LoadedConfig, path: Path) -> int:
    """Export, cache, train, evaluate, fill in blanks, report, in the run directory `path`. Returns the exit code."""
    began = time.perf_counter()
    directory = RunDirectory(path)
    checks.require(loaded, directory)
    code = train(loaded, path)
    if code:
        return code
    if measured := evaluation.is_up_to_date(directory, loaded.experiment.total_steps):
        print(f"evaluation: up to date, in {paths.shown(measured.folder)}")
    else:
        evaluation.evaluate(loaded, path)
        measured = evaluation.is_up_to_date(directory, loaded.experiment.total_steps)
    if measured and (records := read_json(measured.folder / blanks.FILE)):  # other objectives have no blanks
        _print_samples(measured.record, records)
    report.write_report(directory, directory.report, loaded.gin_file.parent / report.RESULTS_FILE)
    print(f"done in {duration(time.perf_counter() - began)}; to look at it in a browser: make site SERVE=1", flush=True)
    return 0


def _print_samples(evaluated: Record, records: Sequence[Record]) -> None:
    """Print words that the model wrote, in the texts that are most like prose, and how many blanks it filled right."""

    def prose(text: str) -> float:
        return sum(letter.isalpha() or letter in " ,." for letter in text) / len(text)

    texts = {excerpt(record["input"], CONTEXT): record for record in records if record["kind"] == "frequent word"}
    print("\nfrequent words cut out of text that it has not seen: what it wrote in [brackets], and what was there:")
    for text in sorted(texts, key=prose, reverse=True)[:NUM_SHOWN]:
        infer.print_sample(text, texts[text]["prediction"], texts[text]["target"])
    print("", *aligned(*filled_rows(evaluated), numbers_from=1), "", sep="\n")
