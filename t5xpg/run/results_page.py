"""The results block of an experiment's README, made from results.json alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from t5xpg.base.curves import COMPARED, Curve, draw
from t5xpg.base.markdown import UNKNOWN, cell, code, cut, decimals, escape, table
from t5xpg.base.progress import duration
from t5xpg.run import provenance
from t5xpg.run.comparison_tables import references_table, seeds_table
from t5xpg.run.numbers import (
    MEASURES,
    Results,
    decoding_text,
    evaluations,
    filled_rows,
    flattened,
    loss_rows,
    metric_rows,
    significance_rows,
)

CURVE_FILE, METRIC_FILE = "curve.svg", "metric.svg"
_STEPS = "training step (optimiser updates)"
SHOWN_SAMPLES = 6
# The names of an evaluation's numbers for people.
_NAMES = {**MEASURES, "encoder_use": "nats per target token more with another example's inputs (use of the encoder)"}
OTHER_LOAD_ALLOWED = 0.05  # of the cores: the system itself takes less, and another program more


def sections(results: Results) -> list[str]:
    """The parts of the block: metrics of the tasks, the curve of the loss, and tables; it refers to `pictures`."""
    metric = f"![Metrics of the tasks while training]({METRIC_FILE})" if METRIC_FILE in pictures(results) else ""
    parts = [
        _objections(results),
        references_table(results),
        seeds_table(results),
        metric,
        _metrics(results),
        *(table(*filled_rows(one), numbers_from=1) for one in evaluations(results) if one.get("blanks")),
        *(_significance(one) for one in results.get("significance", ())),
        f"![{escape(curve_text(results))}]({CURVE_FILE})",
        _measures(results),
        table(["", ""], [[name, value] for name, value in _facts(results) if value]),
        _splits(results),
        _evaluation(results["evaluation"], "evaluation"),
        *(_evaluation(one, f"evaluation on {split}") for split, one in results.get("other_splits", {}).items()),
        *task_tables(results),
        _samples(results),
    ]
    return [section for section in parts if section]


def _objections(results: Results) -> str:
    """The reasons why the numbers were not made with the code of one commit, as a line; "" if they were."""
    reasons = provenance.objections(*provenance.git_states(results))
    return f"**Not the code of one commit:** what is shown {', and '.join(reasons)}." if reasons else ""


def _significance(comparison: Mapping[str, Any]) -> str:
    (title, run, other, *columns), rows = significance_rows(comparison)
    header = [title, escape(run), escape(other), *columns]
    return table(header, [[escape(metric), *numbers] for metric, *numbers in rows], numbers_from=1)


def curve_svg(results: Results) -> str:
    """The picture of the loss over steps: of validation, training and, if there is one, the published validation.

    In nats per target byte if the validation has them, else in nats per target token.
    """
    measure = _curve_measure(results)
    curves = []
    if "published" in results and measure in results["published"]["validation"]:
        validation = results["published"]["validation"]
        curves.append(Curve("published", "wide", validation["step"], validation[measure]))
    for name, split, kind in (("training", "train", "thin"), ("validation", "validation", "own")):
        columns = results["curves"][split]
        if measure in columns:
            curves.append(Curve(name, kind, columns["step"], columns[measure]))
    return draw(_title(results), _STEPS, f"loss, {MEASURES[measure]}", curves, without_cliff=True)


def pictures(results: Results) -> dict[str, str]:
    """The curve of the loss and, where metrics were computed while training, of the first one of each task."""
    curves = []
    task_curves = results.get("tasks", {}).get("infer_eval", {})
    for (task, columns), kind in zip(task_curves.items(), COMPARED, strict=False):
        name, values = next((one for one in columns["metrics"].items() if not isinstance(one[1], str)), ("", []))
        if len(values) > 1:
            curves.append(Curve(f"{task} / {name}", kind, columns["step"], values))
    metric = {METRIC_FILE: draw(_title(results), _STEPS, "metrics while training", curves)} if curves else {}
    return {**metric, CURVE_FILE: curve_svg(results)}


def _metrics(results: Results) -> str:
    """The table of `metric_rows`; a decoding that all rows share stands below it. "" without metrics."""
    header, values = metric_rows(evaluations(results))
    rows = [[escape(metric), escape(split), *map(cell, numbers), way] for metric, split, *numbers, way in values]
    if len(decodings := {row[-1] for row in rows}) != 1:
        return table(header, rows, numbers_from=2) if rows else ""
    return f"{table(header[:-1], [row[:-1] for row in rows], numbers_from=2)}\n\nDecoding: {decodings.pop()}."


def curve_text(results: Results) -> str:
    """The sentence that describes the picture."""
    measure = _curve_measure(results)
    first, final = results["first"]["validation"], results["final"]["validation"]
    return (
        f"Validation loss in {MEASURES[measure]}: {decimals(first.get(measure))} at step {first['step']:,}, "
        f"{decimals(final.get(measure))} at step {final['step']:,}"
    )


def _measures(results: Results) -> str:
    first, final, best = results["first"], results["final"], results["best_validation"]
    points = {"validation, first": first["validation"], "validation, last": final["validation"]}
    if best["step"] != final["validation"]["step"]:
        points["validation, best"] = best
    if "published" in results:
        points["validation, last, as published"] = results["published"]["final"]["validation"]
    if first["train"] is not None:
        points |= {"training, first steps": first["train"], "training, last steps": final["train"]}
    return table(*loss_rows("", points), numbers_from=1)


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


def _facts(results: Results) -> Iterator[tuple[str, str]]:
    identity, hardware, timing = results["identity"], results["hardware"], results["timing"]
    yield "command", code(results["command"])
    yield "source", _source(results)
    task_data = identity.get("data")
    if isinstance(task_data, Mapping) and isinstance(task_data.get("task"), str):
        yield "task", code(task_data["task"])
    yield "data", "; ".join(_dataset(data) for data in _datasets(_data(results)))
    if initial := identity.get("initial"):
        after = f"{initial['experiment']} after step {initial['step']:,}"
        yield "started from", f"{escape(after)}; the SHA-256 of its arrays begins with {code(initial['sha256'][:12])}"
    vocabulary = identity.get("vocabulary")
    if isinstance(vocabulary, Mapping):
        yield "vocabulary", escape(_scalars(vocabulary, ("kind", "size", "extra_ids", "sentinels")))
    if results["num_params"]:
        yield "parameters", f"{results['num_params']:,}"
    if trained := results.get("num_trained"):
        yield "trained parameters", f"{trained:,}"
    yield "seed", UNKNOWN if identity.get("seed") is None else str(identity["seed"])
    total = results["total_steps"]
    yield "steps", f"{results['steps']:,}" + (f" of {total:,}" if total and total != results["steps"] else "")
    if selected := results.get("selected"):
        value = (
            "never finite" if selected["step"] is None else f"{cell(selected['value'])} at step {selected['step']:,}"
        )
        yield "best", escape(f"{selected['metric']} {value}")
        yield "ended early", escape(selected["ended_early"] or "")
    yield "examples", "" if results["examples"] is None else f"{results['examples']:,}"
    yield "target tokens", "" if results["target_tokens"] is None else f"{results['target_tokens']:,}"
    if (batches := results.get("batches")) and batches["step"][-1]:
        yield "batches", f"{batches['sha256'][-1][:12]}…, the SHA-256 of the first {batches['step'][-1]:,}"
    yield "time", _time(timing)
    used = timing.get("used_by_others")
    load = "not recorded" if used is None else f"other programs used {used:.0%} of the cores"
    yield "load", load if timing["training_seconds"] else ""
    yield "hardware", escape(_hardware(hardware))
    yield "XLA_FLAGS", escape(hardware.get("xla_flags") or "")
    yield "versions", escape(", ".join(f"{name} {version}" for name, version in results["versions"].items() if version))
    if results["starts"] > 1:
        changed = results["changed_between_starts"]
        differing = f"; what differed between them: {', '.join(changed)} (the last is shown)" if changed else ""
        yield "started", f"{results['starts']} times, each going on from a checkpoint{differing}"


def _source(results: Results) -> str:
    training, evaluation = (
        list(dict.fromkeys(map(provenance.format_commit, used))) for used in provenance.git_states(results)
    )
    later = ", ".join(name for name in evaluation if name not in training)
    return ", ".join(training) + (f"; evaluated with {later}" if later else "")


def _time(timing: Mapping[str, Any]) -> str:
    texts: dict[str, Callable[[float], str]] = {
        "training_seconds": lambda seconds: f"{duration(seconds)} of training",
        "wall_seconds": lambda seconds: f"{duration(seconds)} with start and evaluation",
        "seconds_per_step": lambda seconds: f"{1000 * seconds:,.0f} ms a step",
        "tokens_per_second": lambda rate: f"{rate:,.0f} tokens a second",
        "share_of_peak": lambda share: f"{100 * share:.0f}% of the hardware's peak",
    }
    known = [text(timing[name]) for name, text in texts.items() if timing[name] is not None]
    alone = (timing.get("used_by_others") or 0.0) <= OTHER_LOAD_ALLOWED
    others = f"left out: more than {OTHER_LOAD_ALLOWED:.0%} of the cores were used by others"
    return ", ".join(known) if alone else others


def _hardware(hardware: Mapping[str, Any]) -> str:
    parts = [hardware["cpu"], f"{hardware['cores']} cores" if hardware["cores"] != 1 else "1 core"]
    if hardware["memory_bytes"]:
        parts.append(f"{hardware['memory_bytes'] / 2**30:.0f} GiB")
    parts.append(hardware["platform"])
    devices = hardware["devices"]
    if devices and devices["platform"] == "cpu":
        parts.append("no accelerator" + (f", {devices['count']} simulated devices" if devices["count"] > 1 else ""))
    elif devices:
        parts.append(f"{devices['count']} x {devices['kind']}")
    return "; ".join(part for part in parts if part)


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
    facts = _scalars(source) if isinstance(source, Mapping) else str(source or "")
    limit = f"the first {data['limit']:,} rows of each split" if data.get("limit") else ""
    size = f"the first {data['max_bytes'] / 1e6:g} MB of each split" if data.get("max_bytes") else ""
    return escape(
        cut(": ".join(part for part in (data.get("name", ""), ", ".join(filter(None, (facts, limit, size)))) if part))
    )


def _scalars(value: Mapping[str, Any], names: Sequence[str] | None = None) -> str:
    chosen = value if names is None else [name for name in names if name in value]
    return ", ".join(f"{name} {value[name]}" for name in chosen if isinstance(value[name], str | int))


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


def _evaluation(evaluation: Any, title: str) -> str:
    if not isinstance(evaluation, Mapping):
        return ""
    elsewhere = ("label", "data", "tasks", "metrics", "predicted", "trivial", "blanks", "decoding")
    shown = {name: value for name, value in evaluation.items() if name not in elsewhere}
    parts = flattened(shown, " / ")
    numbers: list[tuple[str, Any]] = [(name, one) for name, one in parts if isinstance(one, str | int | float)]
    rows = [
        [escape(_NAMES.get(name, name)), decimals(value) if name in _NAMES else cell(value)] for name, value in numbers
    ]
    return table([escape(title), ""], rows, numbers_from=1)


def _samples(results: Results) -> str:
    header, samples = ["input", "prediction", "target"], (results["samples"] or [])[:SHOWN_SAMPLES]
    return table(header, [[escape(cut(sample[name])) for name in header] for sample in samples]) if samples else ""


def _title(results: Results) -> str:
    names = [data["name"] for data in _datasets(_data(results)) if data.get("name")]
    return f"{results['experiment']} on {', '.join(names)}" if names else str(results["experiment"])


def _curve_measure(results: Results) -> str:
    return "nats_per_byte" if "nats_per_byte" in results["curves"]["validation"] else "loss"
