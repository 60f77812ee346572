"""Predictions of a checkpoint of a run: for a prompt, for a file, for a split of its task."""

import contextlib
import os
import sys
from pathlib import Path
from typing import BinaryIO

from t5xpg.base.errors import UserError
from t5xpg.base.markdown import one_line
from t5xpg.base.progress import Progress
from t5xpg.data.objectives import IidDenoising, SpanCorruption
from t5xpg.data.text.lines import SURROGATE
from t5xpg.data.vocab.sentinels import blanks_of, fill
from t5xpg.evaluate.infer_resume import open_partial
from t5xpg.evaluate.infer_sources import Input, Inputs, file_source, json_line, open_split, read_rows, split_config
from t5xpg.evaluate.predictor import Answer, Predictor
from t5xpg.evaluate.trained_model import Step
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.known_tasks import known_task
from t5xpg.experiment.recipe import Recipe
from t5xpg.run.directory import RunDirectory


def fill_in(
    loaded: LoadedConfig, path: Path, text: str, step: Step = None, prompt: str = "", *, as_json: bool = False
) -> None:
    """Print the prediction for one text and, if it has blanks, the text with its blanks filled in.

    step: see `parameters_and_vocabulary`, here and below. prompt: is put before the text. as_json: print the record
    that `predict_file` writes. Raises UserError for a text without blanks where the model was trained to fill in some.
    """
    if isinstance(loaded.experiment.eval_dataset.objective, SpanCorruption | IidDenoising):
        _check_blanks(text)
    predictor, checkpoint_step = Predictor.from_run(loaded, path, step)
    predictor.check(prompt + text, "The prompt")
    answer = predictor.answers(predictor.encode([prompt + text]))[0]
    if as_json:
        print(json_line(_record(Input({"inputs": text}, text), answer)).decode(), end="", flush=True)
        return
    print(f"{loaded.name} after step {checkpoint_step:,}")
    print_filled(prompt + text, *answer.texts)


def print_filled(prompt: str, *predictions: str) -> None:
    """Print the prompt and each prediction; if the prompt has blanks, also the prompt filled in by each prediction."""
    print(f"input       {one_line(prompt)}")
    for prediction in predictions:
        print(f"prediction  {one_line(prediction)}", flush=True)
        if blanks_of(prompt):
            print(f"filled in   {_filled(prompt, prediction)}", flush=True)


def print_sample(text: str, prediction: str, target: str) -> None:
    """Print the text with the predicted and with the original blanks; without blanks, the prediction and the target."""
    if blanks_of(text):
        print(f"\nfilled in  {_filled(text, prediction)}")
        print(f"was        {_filled(text, target)}", flush=True)
    else:
        print(f"\ninput      {one_line(text)}")
        print(f"predicted  {one_line(prediction)}")
        print(f"was        {one_line(target)}", flush=True)


def _filled(text: str, prediction: str) -> str:
    """The filled text on one line, blanks bold on a terminal. Texts are cleaned first: the marks are control codes."""
    marks = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("[", "]")
    return fill(one_line(text), one_line(prediction), *marks)


def prompt_of(loaded: LoadedConfig, task: str) -> str:
    """The text that a task puts in front of its inputs. Raises UserError if there is none, or if it is not known."""
    row = known_task(task, loaded.experiment.needs)
    if row is None:
        raise UserError(f"TASK={task} is no task of the table: write its prompt yourself, as its inputs have it.")
    if not row.prompt:
        raise UserError(f"TASK={task} puts nothing in front of its inputs: leave TASK out.")
    return row.prompt


def predict_file(
    loaded: LoadedConfig, path: Path, source: Path, target: Path | None, step: Step = None, prompt: str = ""
) -> None:
    """Predict for every line of a JSONL file; write each record with "prediction" and "filled" added.

    A line holds {"inputs": text} (or "text"). Where several sequences are decoded for a record, "predictions" and
    "scores" hold all of them, the best first. target: the file to write, or None for the standard output. The file
    appears when it is complete; after an interruption, the next start continues it. prompt: is put before each text.
    Raises UserError that names the line, before the first prediction, for a line that is no such record, is too long,
    or has a blank without a sentinel.
    """
    target = _output_file(target)
    rows = list(read_rows(source))  # all are read first, so that no mistake shows after hours
    if halves := sum(SURROGATE.search(row.text) is not None for row in rows):
        print(f"texts with half a character (a lone surrogate), read as U+FFFD: {halves:,}", file=sys.stderr)
    predictor, _ = Predictor.from_run(loaded, path, step)
    for row in rows:
        predictor.check(prompt + row.text, f"{source}:{row.number}:")
    _predict(predictor, file_source(source, rows, predictor, prompt), target)


def predict_split(loaded: LoadedConfig, path: Path, split: str, target: Path | None, step: Step = None) -> None:
    """As `predict_file`, for every row of a split of the task that the experiment evaluates on: {"inputs", "targets",
    "prediction"}, and "filled" if the inputs have blanks. Makes the data of the split if they are missing.
    """
    target = _output_file(target)
    directory = RunDirectory(path)
    directory.read()
    config = split_config(loaded, split)
    with contextlib.redirect_stdout(sys.stderr):  # the standard output may be for the records
        data = Recipe.of(config, loaded.experiment.needs).make()
    predictor, _ = Predictor.from_run(loaded, path, step)
    with open_split(config, directory, data, predictor) as source:
        _predict(predictor, source, target)


def _predict(predictor: Predictor, source: Inputs, target: Path | None) -> None:
    if target is None:
        _write(predictor, source, sys.stdout.buffer, num_done=0)
        return
    identity = {**predictor.identity, "input": source.identity}
    with open_partial(target, identity, predictor.batch_size) as (file, num_done):
        count = _write(predictor, source, file, num_done)
    print(f"{count:,} predictions in {target}", file=sys.stderr)


def _write(predictor: Predictor, source: Inputs, file: BinaryIO, num_done: int) -> int:
    """Predict from row `num_done` on, and write each batch as soon as it is done. Returns the number of all records."""
    with Progress("predict", source.total, "records", initial=num_done) as progress:
        for batch in source.batches(num_done):
            answers = predictor.answers(batch.tokens, progress.count)
            for row, answer in zip(batch.rows, answers, strict=False):
                file.write(json_line(_record(row, answer)))
            file.flush()
            progress.advance(len(batch.rows))
        return progress.count


def _record(row: Input, answer: Answer) -> dict[str, object]:
    best = answer.texts[0]
    others = {"predictions": list(answer.texts), "scores": answer.scores} if len(answer.texts) > 1 else {}
    replaced = ("predictions", "scores", "filled") if "prediction" in row.content else ()  # of another decoding
    content = {name: value for name, value in row.content.items() if name not in replaced}
    return {**content, "prediction": best, **({"filled": fill(row.text, best)} if row.fills else {}), **others}


def _output_file(target: Path | None) -> Path | None:
    """The file to write, links followed. Raises UserError for a path that cannot be replaced by a file."""
    if target is None:
        return None
    if target.is_dir():
        raise UserError(f"OUTPUT={target} is a folder. Expected a file, for instance {target / 'out.jsonl'}")
    if target.exists() and not target.is_file():
        raise UserError(f"OUTPUT={target} is no regular file. Leave it out to write to the terminal.")
    return Path(os.path.realpath(target))


def _check_blanks(prompt: str) -> None:
    blanks = blanks_of(prompt)
    if not blanks:
        raise UserError("The prompt has no blank: write <extra_id_0> where text is missing, <extra_id_1> for the next.")
    if blanks != list(range(len(blanks))):
        raise UserError(
            f"The blanks of the prompt are numbered {', '.join(map(str, blanks))}: the first is <extra_id_0>, "
            "and each next one counts one up, as in training."
        )
