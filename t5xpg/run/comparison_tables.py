"""The tables of a results page with numbers beside the run's own: published figures, trivial answers, further seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.markdown import UNKNOWN, cell, decimals, escape, table
from t5xpg.run.numbers import MEASURES, Key, Results, matching_keys, trivial_results, values


def references_table(results: Results) -> str:
    """The results of the run beside published figures and answers without a model; "" if there is nothing to compare.

    The columns are the measures of the published figures; without those, the measures of the other answers.
    """
    own_values, published, answers = values(results), results.get("references", ()), trivial_results(results)
    published_keys = [
        next(iter(matching_keys(reference, own_values)), ("", reference["metric"], reference["split"]))
        for reference in published
    ]
    columns = list(dict.fromkeys(published_keys or [key for answer in answers.values() for key in answer]))
    if not columns:
        return ""
    count = 1 + len(results.get("seeds", ()))
    name = "this experiment" + (f", mean of {count} seeds (lowest to highest)" if count > 1 else "")
    # the cells of a row: its name, parameters and compute, then its numbers
    first_row = (name, _count(results["num_params"]), _compute(results.get("training_flops")))
    rows = {first_row: {key: _spread(key, own_values[key], count) for key in own_values}}
    for reference, key in zip(published, published_keys, strict=True):
        facts = (_reference_link(reference), _count(reference.get("parameters")), _compute(reference.get("flops")))
        rows.setdefault(facts, {})[key] = _number(key, reference["value"])
    for answer, numbers in answers.items():
        if not numbers.keys().isdisjoint(columns):
            rows[answer, UNKNOWN, UNKNOWN] = {key: _number(key, value) for key, value in numbers.items()}
    with_task = len({task for task, _, _ in columns if task}) > 1
    titles = [escape(f"{_measure_name(key, with_task)}, {key[2]}") for key in columns]
    cells = [[name, *(row.get(key, UNKNOWN) for key in columns), *facts] for (name, *facts), row in rows.items()]
    return table(["", *titles, "parameters", "training compute"], cells, numbers_from=1)


def require_references(results: Results, options: str) -> None:
    """Raise UserError if a reference matches none of the numbers on its split, or several of them.

    options: those of a command for the run, for the message.
    """
    keys = values(results)
    for reference in results.get("references", ()):
        place, split = f"references.toml: {reference['name']}: metric {reference['metric']!r}", reference["split"]
        known = [key[1] for key in keys if key[2].partition(", ")[0] == split]
        if not known:
            raise UserError(f"{place}: the run was not evaluated on {split}: make eval {options} SPLIT={split}")
        if not (matches := matching_keys(reference, keys)):
            raise UserError(f"{place} is not measured on {split}.{nearest(reference['metric'], known)}")
        if len(matches) > 1:
            raise UserError(
                f"{place} is one of several tasks: {', '.join(f'{task}/{name}' for task, name, _ in matches)}"
            )


def seeds_table(results: Results) -> str:
    """The mean of each number over the seeds, and its range; "" for one seed."""
    other_seeds = results.get("seeds", ())
    if not other_seeds:
        return ""
    seeds = ", ".join(str(seed) for seed in (results["identity"].get("seed"), *(one["seed"] for one in other_seeds)))
    rows = [
        [escape(_measure_name(key, with_task=True)), escape(key[2]),
         *(_number(key, one) for one in (statistics.mean(numbers), min(numbers), max(numbers))), str(len(numbers))]
        for key, numbers in values(results).items()
    ]  # fmt: skip
    return table([f"seeds {seeds}", "split", "mean", "lowest", "highest", "n"], rows, numbers_from=2)


def _measure_name(key: Key, with_task: bool) -> str:
    """The name of a measure, with its task where several tasks are shown."""
    task, measure, _ = key
    return f"{f'{task} / ' if task and with_task else ''}{MEASURES.get(measure, measure)}"


def _number(key: Key, value: float) -> str:
    return decimals(value) if key[1] in MEASURES else cell(value)


def _spread(key: Key, numbers: Sequence[float], count: int) -> str:
    """The mean and the range of the numbers. count: of the seeds, of which some may have no finite number."""
    span = f" ({_number(key, min(numbers))} to {_number(key, max(numbers))})" if len(numbers) > 1 else ""
    some = f", of {len(numbers)} seeds" if len(numbers) < count else ""
    return _number(key, statistics.mean(numbers)) + span + some


def _count(parameters: int | None) -> str:
    return f"{parameters:,}" if parameters else UNKNOWN


def _compute(flops: float | None) -> str:
    return UNKNOWN if flops is None else f"{flops:.1e} FLOP".replace("e+", "e")


def _reference_link(reference: Mapping[str, Any]) -> str:
    """The name and source of a reference: a link, where the source is an address without special characters."""
    name, source = escape(reference["name"]), reference["source"]
    is_address = source.startswith(("https://", "http://")) and not set(source) & set("()<>|` ")
    return f"[{name}]({source})" if is_address else f"{name} ({escape(source)})"
