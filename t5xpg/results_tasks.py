"""What a run's records say of each task by itself: in results.json, and as tables of the results block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from t5xpg.markdown import cell, decimals, escape, table

Record = Mapping[str, Any]


def of_records(records: Sequence[Record], measures: Sequence[str]) -> dict[str, Any]:
    """The curves of each task: {"validation": {task: …}, "infer_eval": {task: …}}, empty where there are none.

    "validation": {"step": […], measure: […]} of a mixture's tasks. "infer_eval": {"step": […], "examples": […],
    "metrics": {name: […]}}; of a metric that is a text (a signature) the last one, and pictures are left out.
    """
    found: dict[str, Any] = {}
    for split, columns in (("validation", _validation_columns), ("infer_eval", _metric_columns)):
        by_task: dict[str, list[Record]] = {}
        for record in records:
            if record.get("split") == split and record.get("task") is not None:
                by_task.setdefault(record["task"], []).append(record)
        if by_task:
            found[split] = {task: columns(lines, measures) for task, lines in by_task.items()}
    return found


def sections(results: Record, measures: Mapping[str, str]) -> list[str]:
    """The tables, as Markdown: the last loss of each task, and its last metrics while training.

    measures: names of columns and how they are called.
    """
    return [one for one in (_losses(results, measures), _metrics(results)) if one]


def _validation_columns(lines: Sequence[Record], measures: Sequence[str]) -> dict[str, Any]:
    names = [name for name in measures if any(line.get(name) is not None for line in lines)]
    return {"step": [line["step"] for line in lines], **{name: [line.get(name) for line in lines] for name in names}}


def _metric_columns(lines: Sequence[Record], measures: Sequence[str]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for name in dict.fromkeys(name for line in lines for name in line["metrics"]):
        values = [line["metrics"].get(name) for line in lines]
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            metrics[name] = texts[-1]
        elif any(isinstance(value, int | float) for value in values):
            metrics[name] = [value if isinstance(value, int | float) else None for value in values]
    return {
        "step": [line["step"] for line in lines],
        "examples": [line["examples"] for line in lines],
        "metrics": metrics,
    }


def _losses(results: Record, measures: Mapping[str, str]) -> str:
    evaluation = results.get("evaluation")
    points: dict[str, Record] = {}
    if isinstance(evaluation, Mapping) and isinstance(evaluation.get("tasks"), Mapping):
        points = {task: {"step": evaluation["step"], **values} for task, values in evaluation["tasks"].items()}
    else:
        for task, columns in results.get("tasks", {}).get("validation", {}).items():
            points[task] = {name: values[-1] for name, values in columns.items()}
    if not points:
        return ""
    shown = [measure for measure in measures if any(point.get(measure) is not None for point in points.values())]
    rows = [
        [escape(task), f"{point['step']:,}", *(decimals(point.get(measure)) for measure in shown)]
        for task, point in points.items()
    ]
    return table(["validation by task", "step", *(measures[measure] for measure in shown)], rows, numbers_from=1)


def _metrics(results: Record) -> str:
    rows = [
        [
            escape(f"{task} / {name}"),
            f"{columns['step'][-1]:,}",
            cell(values if isinstance(values, str) else values[-1]),
        ]
        for task, columns in results.get("tasks", {}).get("infer_eval", {}).items()
        for name, values in columns["metrics"].items()
    ]
    return table(["metrics while training", "step", ""], rows, numbers_from=1) if rows else ""
