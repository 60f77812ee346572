"""Tables of a results page that set its numbers beside others: published figures, trivial answers, further seeds."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.markdown import UNKNOWN, cell, decimals, escape, table
from t5xpg.run.results import TRIVIAL
from t5xpg.run.seed_summary import Key, evaluations, values

MEASURES = {  # how the columns of a curve are called
    "nats_per_byte": "nats per target byte",
    "bits_per_byte": "bits per target byte",
    "loss": "nats per target token",
    "accuracy": "accuracy",
}

Results = Mapping[str, Any]


def references_table(results: Results) -> str:
    """The results here beside published figures and answers that need no model; "" if there is nothing to compare with.

    The columns are the measures of the published figures; without those, the measures of the other answers.
    """
    own, published, beside = values(results), results.get("references", ()), trivial(results)
    of_published = [next(iter(keys_of(one, own)), ("", one["metric"], one["split"])) for one in published]
    columns = list(dict.fromkeys(of_published or [key for answer in beside.values() for key in answer]))
    if not columns:
        return ""
    count = 1 + len(results.get("seeds", ()))
    name = "this experiment" + (f", mean of {count} seeds (lowest to highest)" if count > 1 else "")
    # the cells of a row: its name, parameters and compute, then its numbers
    first = (name, _count(results["num_params"]), _compute(results.get("training_flops")))
    rows = {first: {key: _spread(key, own[key]) for key in own}}
    for one, key in zip(published, of_published, strict=True):
        facts = (_named(one), _count(one.get("parameters")), _compute(one.get("flops")))
        rows.setdefault(facts, {})[key] = _number(key, one["value"])
    for answer, found in beside.items():
        if not found.keys().isdisjoint(columns):
            rows[answer, UNKNOWN, UNKNOWN] = {key: _number(key, value) for key, value in found.items()}
    several = len({task for task, _, _ in columns if task}) > 1
    titles = [escape(f"{_measure(key, several)}, {key[2]}") for key in columns]
    cells = [[name, *(row.get(key, UNKNOWN) for key in columns), *facts] for (name, *facts), row in rows.items()]
    return table(["", *titles, "parameters", "training compute"], cells, numbers_from=1)


def require_references(results: Results, options: str) -> None:
    """Raise UserError if a reference matches none of the numbers on its split, or several of them.

    options: those of a command for the run, for the message.
    """
    own = values(results)
    for one in results.get("references", ()):
        where, split = f"references.toml: {one['name']}: metric {one['metric']!r}", one["split"]
        known = [key for key in own if key[2] == split]
        if not known:
            raise UserError(f"{where}: the run was not evaluated on {split}: make eval {options} SPLIT={split}")
        if not (found := keys_of(one, own)):
            raise UserError(f"{where} is not measured on {split}.{nearest(one['metric'], [key[1] for key in known])}")
        if len(found) > 1:
            raise UserError(
                f"{where} is one of several tasks: {', '.join(f'{task}/{name}' for task, name, _ in found)}"
            )


def seeds_table(results: Results) -> str:
    """The mean of each number over the seeds, and its range; "" for one seed."""
    others = results.get("seeds", ())
    if not others:
        return ""
    numbers = ", ".join(str(seed) for seed in (results["identity"].get("seed"), *(one["seed"] for one in others)))
    rows = [
        [escape(_measure(key, several=True)), escape(key[2]),
         *(_number(key, one) for one in (statistics.mean(found), min(found), max(found))), str(len(found))]
        for key, found in values(results).items()
    ]  # fmt: skip
    return table([f"seeds {numbers}", "split", "mean", "lowest", "highest", "n"], rows, numbers_from=2)


def trivial(results: Results) -> dict[str, dict[Key, float]]:
    """The results of answers that need no model, by the names of the answers."""
    found: dict[str, dict[Key, float]] = {}
    for evaluation in evaluations(results):
        split = str(evaluation.get("split", "validation"))
        unigram = evaluation.get("unigram") or {}
        measure = next((name for name in MEASURES if unigram.get(name) is not None), None)
        if measure is not None:
            found.setdefault("the frequencies of tokens", {})["", measure, split] = unigram[measure]
        for task, answers in evaluation.get("trivial", {}).items():
            for name, metrics in answers.items():
                numbers = {(task, one, split): x for one, x in metrics.items() if isinstance(x, int | float)}
                found.setdefault(TRIVIAL.get(name, escape(name)), {}).update(numbers)
    return found


def keys_of(reference: Mapping[str, Any], own: Iterable[Key]) -> list[Key]:
    """The numbers of this experiment that a reference can stand beside: "bleu", or "task/bleu" in a mixture."""
    metric, split = reference["metric"], reference["split"]
    return [key for key in own if key[2] == split and metric in (key[1], f"{key[0]}/{key[1]}")]


def _measure(key: Key, several: bool) -> str:
    """A measure, with its task where several are shown."""
    task, measure, _ = key
    return f"{f'{task} / ' if task and several else ''}{MEASURES.get(measure, measure)}"


def _number(key: Key, value: float) -> str:
    return decimals(value) if key[1] in MEASURES else cell(value)


def _spread(key: Key, found: Sequence[float]) -> str:
    span = f" ({_number(key, min(found))} to {_number(key, max(found))})" if len(found) > 1 else ""
    return _number(key, statistics.mean(found)) + span


def _count(parameters: int | None) -> str:
    return f"{parameters:,}" if parameters else UNKNOWN


def _compute(flops: float | None) -> str:
    return UNKNOWN if flops is None else f"{flops:.1e} FLOP".replace("e+", "e")


def _named(reference: Mapping[str, Any]) -> str:
    """The name of a reference with its source: a link, where that is an address that Markdown can hold."""
    name, source = escape(reference["name"]), reference["source"]
    is_address = source.startswith(("https://", "http://")) and not set(source) & set("()<>|` ")
    return f"[{name}]({source})" if is_address else f"{name} ({escape(source)})"
