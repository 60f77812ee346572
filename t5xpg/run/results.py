"""A run's records as one JSON value: the whole content of a results page.

The run determines everything in it, except the values of "timing", "hardware", "versions", "git", "sources",
"command", "starts" and "changed_between_starts".
"""

import bisect
import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json, write_text
from t5xpg.run.best import selected_step
from t5xpg.run.command_options import options_of
from t5xpg.run.directory import RunDirectory
from t5xpg.run.evaluations import PREDICTED, State, of_steps
from t5xpg.run.provenance import counting_starts
from t5xpg.run.records import read_jsonl, records_of_split

Record = Mapping[str, Any]
Results = dict[str, Any]

FORMAT = 1
TRAIN_POINTS = 200  # of the thinned training curve
_CURVE_NAMES = ("loss", "nats_per_byte", "bits_per_byte", "accuracy")
_FACTS_OF_A_START = ("git", "versions", "host", "devices")


def task_curves(records: Sequence[Record]) -> dict[str, Any]:
    """The curves of each task: {"validation": {task: …}, "infer_eval": {task: …}}, empty if there are none.

    "validation": {"step": […], measure: […]} of a mixture's tasks. "infer_eval": {"step": […], "examples": […],
    "decoding": {…}, "metrics": {name: […]}}. For a metric that is a text (a signature) only the last text is kept;
    pictures are left out. A curve has only records with the decoding and the number of examples of the last record:
    "left_out" counts the others.
    """
    curves: dict[str, Any] = {}
    for split, columns in (("validation", _columns), ("infer_eval", _metric_columns)):
        by_task: dict[str, list[Record]] = {}
        for record in records:
            if record.get("split") == split and record.get("task") is not None:
                by_task.setdefault(record["task"], []).append(record)
        if by_task:
            curves[split] = {task: columns(lines) for task, lines in by_task.items()}
    return curves


def _metric_columns(lines: Sequence[Record]) -> dict[str, Any]:
    alike = [line for line in lines if all(line.get(name) == lines[-1].get(name) for name in PREDICTED)]
    left_out, lines = len(lines) - len(alike), alike
    metrics: dict[str, Any] = {}
    for name in dict.fromkeys(name for line in lines for name in line["metrics"]):
        values = [line["metrics"].get(name) for line in lines]
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            metrics[name] = texts[-1]
        elif any(isinstance(value, int | float) for value in values):
            metrics[name] = [value if isinstance(value, int | float) else None for value in values]
    steps, examples = ([line[name] for line in lines] for name in ("step", "examples"))
    decoding = {"decoding": lines[-1]["decoding"]} if lines[-1].get("decoding") else {}
    others = {"left_out": left_out} if left_out else {}
    return {"step": steps, "examples": examples, **decoding, **others, "metrics": metrics}


def collect(
    run: RunDirectory,
    *,
    train_points: Sequence[int] | None = None,
    state: State | None = None,
    read: Callable[[Path], list[dict[str, Any]]] = read_jsonl,
) -> Results:
    """The results of a run, from its records alone.

    train_points: the steps of another run's training curve. The curve of this run then has its points at those of them
    that it has reached. state: only its evaluations are taken. read: reads a file of records. Raises UserError if there
    is no run, no validation loss yet, or a file is unreadable.
    """
    record, metrics, timing = run.read(), read(run.metrics_jsonl), read(run.timing_jsonl)
    train, validation = records_of_split(metrics, "train"), records_of_split(metrics, "validation")
    if all(line.get("loss") is None for line in validation):
        raise UserError(
            f"{run.path} has no {'finite ' if validation else ''}validation loss: nothing to report. "
            f"Train on (make train {options_of(run)}), or look into {run.metrics_jsonl}."
        )
    starts, steps = counting_starts(record), max(line["step"] for line in metrics)
    selected = selected_step(metrics, starts[-1], steps)
    main, labelled = of_steps(run, {steps, (selected or {}).get("step")}, state)
    evaluated = None if main is None else _published(main.record)
    shown = [one for one in (main, *labelled.values()) if one is not None]
    optional = {
        "selected": selected,
        "tasks": task_curves(metrics),
        "other_splits": {name: _published(one.record, name) for name, one in labelled.items()},
        "attention": None if main is None else _read_if_present(main.attention_json),
        "significance": [one for each in shown if (one := _read_if_present(each.significance_json))],
    }
    return {
        "format": FORMAT,
        "experiment": record["experiment"],
        **_start_facts(starts, [one.record.get("git") for one in shown]),
        "identity": record["identity"],
        "data": _without_folders(starts[-1].get("data")),
        "num_params": starts[-1].get("num_params"),
        **({"num_trained": starts[-1]["num_trained"]} if "num_trained" in starts[-1] else {}),
        "steps": steps,
        "total_steps": starts[-1].get("total_steps"),
        "target_tokens": round(sum(tokens)) if (tokens := _present_values(train, "target_tokens")) else None,
        "examples": _examples(record["identity"], steps),
        **_curves(train, validation, train_points),
        "batches": _batches(run.batches, [line["step"] for line in validation]),
        "samples": None if main is None else _read_if_present(main.samples_json),
        "evaluation": evaluated,
        "training_flops": _training_flops(timing),
        "timing": _timing(timing, starts),
        **{name: value for name, value in optional.items() if value},
    }


def _published(record: Record, name: str | None = None) -> Results:
    """A record as a page shows it. name: its label beside the main evaluation."""
    left_out = ("time", "git", "parts", "cache", "checkpoint", "experiment", "lengths")
    return {**({"label": name} if name else {}), **{key: one for key, one in record.items() if key not in left_out}}


def _start_facts(starts: Sequence[Record], evaluation_git: Sequence[Any]) -> Results:
    """The command, code, versions and hardware of a run: those of its last start, and what changed between starts."""
    last_start = starts[-1]
    return {
        "command": last_start["command"],
        "starts": len(starts),
        "changed_between_starts": [
            name for name in _FACTS_OF_A_START if any(start.get(name) != last_start.get(name) for start in starts)
        ],
        "git": last_start["git"],
        "sources": {
            "training": _distinct(start["git"] for start in starts),
            "evaluation": _distinct(evaluation_git),
        },
        "versions": last_start["versions"],
        "hardware": {
            **last_start["host"],
            "devices": last_start["devices"],
            "xla_flags": last_start.get("xla_flags"),
        },
    }


def _curves(train: Sequence[Record], validation: Sequence[Record], train_points: Sequence[int] | None) -> Results:
    """The curves of a run, with their first, last and best points. train_points: see `collect`."""
    points = thinned(train, TRAIN_POINTS) if train_points is None else at_steps(train, train_points)
    return {
        "first": {"train": _point(train[:1]), "validation": _point(validation[:1])},
        "final": {"train": _point(train[-1:]), "validation": _point(validation[-1:])},
        "best_validation": _point(
            [min(validation, key=lambda line: math.inf if (x := line.get("loss")) is None else x)]
        ),
        "curves": {"validation": _columns(validation), "train": _columns(points)},
    }


def _without_folders(data: Any) -> Any:
    """Manifests with only the file's name in place of each absolute "path" (of somebody's home)."""
    if isinstance(data, list):
        return [_without_folders(one) for one in data]
    if not isinstance(data, dict):
        return data
    return {
        name: Path(value).name if name == "path" and Path(value).is_absolute() else _without_folders(value)
        for name, value in data.items()
    }


def ended_early(run: RunDirectory) -> bool:
    """True if the run ended before its last step, because its evaluations got no better."""
    start, metrics = counting_starts(run.read())[-1], read_jsonl(run.metrics_jsonl)
    selected = selected_step(metrics, start, max((line["step"] for line in metrics), default=0))
    return bool(selected and selected["ended_early"])


def read_results(path: Path) -> Results:
    """A results.json. Raises UserError where it is missing, unreadable or of another format."""
    remedy = f"Write it again with: make report EXP={path.parent.name}"
    try:
        results = read_json(path)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. {remedy}") from error
    except ValueError as error:
        raise UserError(f"{path} is not readable as JSON ({error}). {remedy}") from error
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise UserError(f"{path} has another format than this version reads ({FORMAT}). {remedy}")
    return results


def write_results(path: Path, results: Record) -> None:
    """Write `results_text`."""
    write_text(path, results_text(results))


def results_text(results: Record) -> str:
    """Results as indented JSON, with lists of numbers on a line each."""
    return _json_text(results, "") + "\n"


def thinned(lines: Sequence[Record], count: int) -> list[dict[str, Any]]:
    """At most `count` records: means over groups of successive ones, weighted by their target tokens.

    Each has the last step of its group. Values of None do not count.
    """
    size = -(-len(lines) // count) if lines else 1
    return _merged([lines[start : start + size] for start in range(0, len(lines), size)])


def at_steps(lines: Sequence[Record], steps: Sequence[int]) -> list[dict[str, Any]]:
    """The records merged into the points that `thinned` made of a longer run; incomplete points are left out."""
    groups: list[Sequence[Record]] = []
    begin = 0
    for step in steps:
        end = bisect.bisect_right(lines, step, begin, key=lambda line: line["step"])
        if end > begin and lines[end - 1]["step"] == step:
            groups.append(lines[begin:end])
        begin = end
    return _merged(groups)


def _merged(groups: Sequence[Sequence[Record]]) -> list[dict[str, Any]]:
    """A point for every group of successive records; where each group is one record, these records."""
    if all(len(group) == 1 for group in groups):
        return [dict(group[0]) for group in groups]
    result = []
    for group in groups:
        point: dict[str, Any] = {"step": group[-1]["step"]}
        for name in _CURVE_NAMES:
            weighted = [(line[name], line.get("target_tokens") or 1) for line in group if line.get(name) is not None]
            weight = sum(weight for _, weight in weighted)
            mean = sum(value * weight for value, weight in weighted) / weight if weighted else None
            point[name] = None if mean is None else float(f"{mean:.7g}")  # what float32 sums can mean
        result.append(point)
    return result


def training_seconds(timing: Sequence[Record]) -> float | None:
    """The seconds spent in updates: for each record, its seconds a step times the steps since the record before."""
    return _sum_over_updates(timing, "seconds_per_step")


def _sum_over_updates(timing: Sequence[Record], *names: str) -> float | None:
    """The sum over updates of the product of these values of their record; None where no record has them all."""
    total, before = 0.0, 0
    for line in timing:
        if all(line.get(name) is not None for name in names):
            total += math.prod(line[name] for name in names) * (line["step"] - before)
            before = line["step"]
    return total if before else None


def _batches(path: Path, steps: Sequence[int]) -> dict[str, list[Any]] | None:
    """The SHA-256 of all batches of the run up to each of these steps; None where not all are known.

    Made of the lines of batches.sha256, one for every update. Two runs with the same digest at a step saw the same
    batches in the same order until then.
    """
    if not path.exists():
        return None
    digest, count, digests = hashlib.sha256(), 0, []
    with path.open("rb") as file:
        for step in steps:
            for line in itertools.islice(file, max(0, step - count)):
                if not line.strip(b"-\n"):  # lines that were lost
                    return None
                digest.update(line)
                count += 1
            if count < step:
                return None
            digests.append(digest.hexdigest())
    return {"step": list(steps), "sha256": digests}


def _timing(timing: Sequence[Record], starts: Sequence[Record]) -> dict[str, Any]:
    """The speed of a run. Rates are medians, because the first record's updates contain the compilation."""
    times = _present_values(timing, "time")
    wall = times[-1] - starts[0]["time"] if times and len(starts) == 1 else None
    if wall is not None and wall < 0:  # the clock was set back
        wall = None
    rates = ("seconds_per_step", "tokens_per_second", "target_tokens_per_second", "share_of_peak")
    medians = {name: statistics.median(values) if (values := _present_values(timing, name)) else None for name in rates}
    known = [line for line in timing if line.get("used_by_others") is not None]
    seconds, by_others = training_seconds(known), _sum_over_updates(known, "seconds_per_step", "used_by_others")
    load = by_others / seconds if by_others is not None and seconds else None
    return {"training_seconds": training_seconds(timing), "wall_seconds": wall, **medians, "used_by_others": load}


def _training_flops(timing: Sequence[Record]) -> float | None:
    """Floating point operations of the model in all updates, forward and backward, to three digits."""
    flops = _sum_over_updates(timing, "seconds_per_step", "flops_per_second")
    return None if flops is None else float(f"{flops:.3g}")


def _distinct(values: Iterable[Any]) -> list[Any]:
    distinct: list[Any] = []
    for value in values:
        distinct += [value] if value not in distinct else []
    return distinct


def _present_values(lines: Sequence[Record], name: str) -> list[Any]:
    return [line[name] for line in lines if line.get(name) is not None]


def _point(lines: Sequence[Record]) -> dict[str, Any] | None:
    return {"step": lines[0]["step"], **{name: lines[0].get(name) for name in _CURVE_NAMES}} if lines else None


def _columns(lines: Sequence[Record]) -> dict[str, list[Any]]:
    names = [name for name in _CURVE_NAMES if any(line.get(name) is not None for line in lines)]
    return {"step": [line["step"] for line in lines], **{name: [line.get(name) for line in lines] for name in names}}


def _examples(identity: Record, steps: int) -> int | None:
    """The examples (rows) of all updates; None if rows are packed or in length buckets, or it is not known."""
    settings = identity.get("settings") or {}
    names = ("batch_size", "pack", "length_buckets")
    batch_size, packed, bucketed = (settings.get(f"train_dataset.{name}") for name in names)
    return None if batch_size is None or packed or bucketed else steps * batch_size


def _read_if_present(path: Path) -> Any:
    try:
        return read_json(path) if path.exists() else None
    except ValueError as error:
        raise UserError(f"{path} is not readable as JSON ({error}). Write it again with: make eval") from error


def _json_text(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        items = (f"{inner}{json.dumps(str(key))}: {_json_text(item, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        return "[\n" + ",\n".join(inner + _json_text(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
