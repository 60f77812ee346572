"""The numbers that a results page shows beside the run's own: published figures and trivial answers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.markdown import escape
from t5xpg.run.numbers import Key, Results, matching_keys, trivial_results, values


class Row(NamedTuple):
    """A row of the comparison. name: Markdown. numbers: of each of `seeds` seeds that has a finite one."""

    name: str
    parameters: int | None
    flops: float | None
    numbers: dict[Key, list[float]]
    seeds: int = 1


def references(results: Results) -> tuple[list[Key], list[Row]]:
    """The columns and rows of the results of the run beside published figures and answers without a model.

    The columns are the measures of the published figures; without those, the measures of the other answers. None where
    there is nothing to compare.
    """
    own_values, published, answers = values(results), results.get("references", ()), trivial_results(results)
    published_keys = [
        next(iter(matching_keys(reference, own_values)), ("", reference["metric"], reference["split"]))
        for reference in published
    ]
    columns = list(dict.fromkeys(published_keys or [key for answer in answers.values() for key in answer]))
    count = 1 + len(results.get("seeds", ()))
    name = "this experiment" + (f", mean of {count} seeds (lowest to highest)" if count > 1 else "")
    rows = [Row(name, results["num_params"], results.get("training_flops"), own_values, count)]
    of_facts: dict[tuple[Any, ...], Row] = {}
    for reference, key in zip(published, published_keys, strict=True):
        facts = (_reference_link(reference), reference.get("parameters"), reference.get("flops"))
        of_facts.setdefault(facts, Row(*facts, {})).numbers[key] = [reference["value"]]
    rows += of_facts.values()
    for answer, numbers in answers.items():
        if not numbers.keys().isdisjoint(columns):
            rows.append(Row(answer, None, None, {key: [value] for key, value in numbers.items()}))
    return columns, rows


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


def _reference_link(reference: Mapping[str, Any]) -> str:
    """The name and source of a reference: a link, where the source is an address without special characters."""
    name, source = escape(reference["name"]), reference["source"]
    is_address = source.startswith(("https://", "http://")) and not set(source) & set("()<>|` ")
    return f"[{name}]({source})" if is_address else f"{name} ({escape(source)})"
