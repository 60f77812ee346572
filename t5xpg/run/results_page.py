"""The results block of an experiment's README, made from results.json alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from t5xpg.base.curves import COMPARED, Curve, draw
from t5xpg.base.markdown import cell, cut, escape, table
from t5xpg.base.pages import render, scalars
from t5xpg.run import provenance
from t5xpg.run.numbers import (
    MEASURES,
    Results,
    decoding_text,
    filled_rows,
    flattened,
    loss_rows,
    metric_rows,
    references,
    significance_rows,
    values,
)

CURVE_FILE, METRIC_FILE = "curve.svg", "metric.svg"
_STEPS = "training step (optimiser updates)"
SHOWN_SAMPLES = 6
# The names of an evaluation's numbers for people.
_NAMES = {**MEASURES, "encoder_use": "nats per target token more with another example's inputs (use of the encoder)"}
OTHER_LOAD_ALLOWED = 0.05  # of the cores: the system itself takes less, and another program more


def text(results: Results) -> str:
    """The block: metrics of the tasks, the curve of the loss, and tables; it refers to `pictures`."""
    measure = _curve_measure(results)
    others = {"evaluation": results["evaluation"]}
    others |= {f"evaluation on {split}": one for split, one in results.get("other_splits", {}).items()}
    return render(
        "results.md.j2",
        results=results,
        curve_file=CURVE_FILE,
        data=[_dataset(data) for data in _datasets(_data(results))],
        evaluations={title: one for title, one in others.items() if one},
        filled_rows=filled_rows,
        loss_rows=loss_rows,
        measure=measure,
        measures=MEASURES,
        metric_file=METRIC_FILE if METRIC_FILE in pictures(results) else "",
        metric_rows=metric_rows,
        names=_NAMES,
        numbers=_numbers,
        objections=provenance.objections(*provenance.git_states(results)),
        other_load_allowed=OTHER_LOAD_ALLOWED,
        references=references(results),
        shown_samples=SHOWN_SAMPLES,
        significance_rows=significance_rows,
        source=_source(results),
        splits=_splits(results),
        task_tables=task_tables(results),
        values=values(results),
    )


def pictures(results: Results) -> dict[str, str]:
    """The curve of the loss and, where metrics were computed while training, of the first one of each task.

    The loss is that of validation, training and, if there is one, the published validation: in nats per target byte if
    the validation has them, else in nats per target token.
    """
    measure, metrics, losses = _curve_measure(results), [], []
    names = ", ".join(data["name"] for data in _datasets(_data(results)) if data.get("name"))
    title = f"{results['experiment']}{f' on {names}' if names else ''}"
    task_curves = results.get("tasks", {}).get("infer_eval", {})
    for (task, columns), kind in zip(task_curves.items(), COMPARED, strict=False):
        name, values = next((one for one in columns["metrics"].items() if not isinstance(one[1], str)), ("", []))
        if len(values) > 1:
            metrics.append(Curve(f"{task} / {name}", kind, columns["step"], values))
    sources = [("training", "thin", results["curves"]["train"]), ("validation", "own", results["curves"]["validation"])]
    if "published" in results:
        sources.insert(0, ("published", "wide", results["published"]["validation"]))
    for name, kind, columns in sources:
        if measure in columns:
            losses.append(Curve(name, kind, columns["step"], columns[measure]))
    metric = {METRIC_FILE: draw(title, _STEPS, "metrics while training", metrics)} if metrics else {}
    return {**metric, CURVE_FILE: draw(title, _STEPS, f"loss, {MEASURES[measure]}", losses, without_cliff=True)}


def task_tables(results: Results) -> list[str]:
    """The last loss of each task, and its last metrics while training."""
    tasks = results.get("tasks", {})
    split_losses = (results.get("evaluation") or {}).get("tasks")
    if split_losses:
        points = {task: {"step": results["evaluation"]["step"], **values} for task, values in split_losses.items()}
    else:
        validation_curves = tasks.get("validation", {}).items()
        points = {task: {name: values[-1] for name, values in columns.items()} for task, columns in validation_curves}
    rows = []
    for task, columns in tasks.get("infer_eval", {}).items():
        last = {name: values if isinstance(values, str) else values[-1] for name, values in columns["metrics"].items()}
        if "decoding" in columns:
            last |= {"examples": columns["examples"][-1], "decoding": decoding_text(columns["decoding"])}
        if "left_out" in columns:
            last["evaluations that were decoded otherwise, left out"] = columns["left_out"]
        rows += [[escape(f"{task} / {name}"), f"{columns['step'][-1]:,}", cell(one)] for name, one in last.items()]
    metrics = table(["metrics while training", "step", ""], rows, numbers_from=1) if rows else ""
    losses = loss_rows("validation by task", {escape(task): point for task, point in points.items()})
    return [one for one in (table(*losses, numbers_from=1) if points else "", metrics) if one]


def _source(results: Results) -> str:
    training, evaluation = (
        list(dict.fromkeys(map(provenance.format_commit, used))) for used in provenance.git_states(results)
    )
    later = ", ".join(name for name in evaluation if name not in training)
    return ", ".join(training) + (f"; evaluated with {later}" if later else "")


def _data(results: Results) -> Any:
    """The record of the data's export if the run has it, else the data's identity, which says less."""
    return results.get("data") or results["identity"].get("data")


def _datasets(data: Any) -> Iterator[Mapping[str, Any]]:
    """The descriptions of datasets in a data identity, as "name", "source", "limit" and "splits".

    The identity is a manifest, or {"dataset": name, "sha256": {split: digest}}, or several of them under names. For a
    user's task it may be something else.
    """
    if not isinstance(data, Mapping):
        return
    if isinstance(data.get("splits"), Mapping):
        yield data
    elif isinstance(data.get("sha256"), Mapping):
        yield {"name": data.get("dataset", ""), "splits": data["sha256"]}
    else:
        for inner in data.values():
            yield from _datasets(inner)


def _dataset(data: Mapping[str, Any]) -> str:
    source = data.get("source")
    facts = scalars(source) if isinstance(source, Mapping) else str(source or "")
    limit = f"the first {data['limit']:,} rows of each split" if data.get("limit") else ""
    size = f"the first {data['max_bytes'] / 1e6:g} MB of each split" if data.get("max_bytes") else ""
    return escape(
        cut(": ".join(part for part in (data.get("name", ""), ", ".join(filter(None, (facts, limit, size)))) if part))
    )


def _splits(results: Results) -> str:
    rows = [
        (data.get("name", ""), split, facts if isinstance(facts, Mapping) else {"sha256": facts})
        for data in _datasets(_data(results))
        for split, facts in data["splits"].items()
    ]
    if not rows:
        return ""
    names = list(dict.fromkeys(name for *_, facts in rows for name in facts))
    cells = [[escape(name), escape(split), *(cell(facts.get(one)) for one in names)] for name, split, facts in rows]
    return table(["data", "split", *(escape(name) for name in names)], cells, numbers_from=2)


def _numbers(evaluation: Results) -> list[tuple[str, Any]]:
    """The names and values of an evaluation that no other table has."""
    elsewhere = ("label", "data", "tasks", "metrics", "predicted", "trivial", "blanks", "decoding")
    shown = {name: value for name, value in evaluation.items() if name not in elsewhere}
    return [(name, one) for name, one in flattened(shown, " / ") if isinstance(one, str | int | float)]


def _curve_measure(results: Results) -> str:
    return "nats_per_byte" if "nats_per_byte" in results["curves"]["validation"] else "loss"
