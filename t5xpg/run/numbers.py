"""The numbers of results and of evaluations, which the results page, tables on a terminal and the site show."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.markdown import UNKNOWN, cell, decimals, escape

Results = Mapping[str, Any]  # of a run, as `results.collect` gives them, or of one of its evaluations
Key = tuple[str, str, str]  # task ("" for the loss and the blanks of a whole split), measure, split

LOSSES = ("nats_per_byte", "loss", "accuracy")
FILLED_IN = "% of {}s filled in"  # with a kind of blanks: "word"
MEASURES = {  # the names of a curve's columns for people
    "nats_per_byte": "nats per target byte",
    "bits_per_byte": "bits per target byte",
    "loss": "nats per target token",
    "accuracy": "token accuracy",
}
# Answers without a model: their names in the records of evaluations, and their names for people.
TRIVIAL = {"copy": "copying the input", "majority": "the most frequent answer"}


def flattened(value: Any, between: str, name: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of a JSON value that are no mappings, with their joined names: ("splits.train", 1)."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(inner, between, f"{name}{between}{key}" if name else str(key))
    else:
        yield name, value


def label_of(evaluation: Results) -> str:
    """The label of a published evaluation: its split, and its differences from the first one."""
    return str(evaluation.get("label") or evaluation.get("split", "validation"))


def evaluations(results: Results) -> list[Results]:
    """The evaluations of a run after its last step: on validation, and on other splits."""
    return [one for one in (results["evaluation"], *results.get("other_splits", {}).values()) if one]


def values(results: Results) -> dict[Key, list[float]]:
    """The last numbers of each run, {(task, measure, split): [of the first run, of the second, …]}.

    They are from evaluations if there are any, else from the last validation while training. Only finite ones count.
    """
    numbers: dict[Key, list[float]] = {}
    for run in (results, *results.get("seeds", ())):
        for one in evaluations(run) or [run["final"]["validation"]]:
            split = label_of(one)
            whole = {name: one.get(name) for name in LOSSES}
            whole |= {FILLED_IN.format(kind): blanks["exact_match"] for kind, blanks in one.get("blanks", {}).items()}
            for task, table in {"": whole, **one.get("metrics", {})}.items():
                for name, value in table.items():
                    if isinstance(value, int | float):
                        numbers.setdefault((task, name, split), []).append(value)
    return numbers


def trivial_results(results: Results) -> dict[str, dict[Key, float]]:
    """The results of answers without a model (the most frequent answer, …), by the names of the answers."""
    results_by_answer: dict[str, dict[Key, float]] = {}
    for evaluation in evaluations(results):
        split = label_of(evaluation)
        unigram = evaluation.get("unigram") or {}
        measure = next((name for name in MEASURES if unigram.get(name) is not None), None)
        if measure is not None:
            results_by_answer.setdefault("the frequencies of tokens", {})["", measure, split] = unigram[measure]
        for task, answers in evaluation.get("trivial", {}).items():
            for name, metrics in answers.items():
                numbers = {(task, one, split): x for one, x in metrics.items() if isinstance(x, int | float)}
                results_by_answer.setdefault(TRIVIAL.get(name, escape(name)), {}).update(numbers)
    return results_by_answer


def matching_keys(reference: Mapping[str, Any], keys: Iterable[Key]) -> list[Key]:
    """The keys whose numbers a reference can be compared with: its metric is "bleu", or "task/bleu" in a mixture, and
    its split is that of the evaluation; of several evaluations of the split, the one that is like the first."""
    metric, split = reference["metric"], reference["split"]
    measured = [key for key in keys if metric in (key[1], f"{key[0]}/{key[1]}")]
    alike = [key for key in measured if key[2] == split]
    return alike or [key for key in measured if key[2].partition(", ")[0] == split]


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


def loss_rows(title: str, points: Mapping[str, Results]) -> tuple[list[str], list[list[str]]]:
    """The header and rows of losses: a row for each name and its values, of which "step" is one."""
    measures = [measure for measure in MEASURES if any(point.get(measure) is not None for point in points.values())]
    rows = [
        [name, f"{point['step']:,}", *(decimals(point.get(measure)) for measure in measures)]
        for name, point in points.items()
    ]
    return [title, "step", *(MEASURES[measure] for measure in measures)], rows


def metric_rows(evaluations: Sequence[Results]) -> tuple[list[str], list[list[Any]]]:
    """The header and rows of the metrics of tasks: [metric, split, value, values of answers without a model, number of
    examples, decoding]. The name of a single task is not repeated."""
    with_task = len({task for one in evaluations for task in one.get("metrics", {})}) > 1
    trivial = [task for one in evaluations for task in one.get("trivial", {}).values()]
    answers = [answer for answer in TRIVIAL if any(answer in task for task in trivial)]
    rows = [
        [f"{task} / {name}" if with_task else name, label_of(one), value]
        + [one.get("trivial", {}).get(task, {}).get(answer, {}).get(name) for answer in answers]
        + [predicted["examples"], decoding_text(predicted["decoding"]) if predicted["decoding"] else UNKNOWN]
        for one in evaluations
        for task, values in one.get("metrics", {}).items()
        for predicted in [one["predicted"][task]]
        for name, value in values.items()
        if isinstance(value, str | int | float)
    ]
    return ["metric", "split", "", *(TRIVIAL[answer] for answer in answers), "examples", "decoding"], rows


def filled_rows(evaluation: Results) -> tuple[list[str], list[list[str]]]:
    """The header and rows of the blanks of an evaluation: the share of answers that equal the removed text, in %."""
    names = ("exact_match", "exchanged", "unigram", "examples")
    rows = [[kind, *(cell(one[name]) for name in names)] for kind, one in evaluation.get("blanks", {}).items()]
    title = f"blanks of {label_of(evaluation)}, exact match in %"
    return [title, "model", "model, shown another text", "most frequent in training", "examples"], rows


def significance_rows(comparison: Results) -> tuple[list[str], list[list[str]]]:
    """The header and rows of a comparison of predictions with those of another run (`evaluate.significance`)."""
    parts = ("mean", "other_mean", "difference")
    rows = [
        [f"{task} / {name}", *("{:.2f} [{:.2f}, {:.2f}]".format(*one[part]) for part in parts), f"{one['p']:.3f}"]
        for task, metrics in comparison["tasks"].items()
        for name, one in metrics.items()
    ]
    title = f"{comparison['split']}, {comparison['samples']:,} samples, seed {comparison['seed']}: mean [95%]"
    return [title, comparison["run"], comparison["other"], "difference", "p"], rows


def decoding_text(settings: Mapping[str, Any]) -> str:
    """Settings of decoding as a text: "beam, num_decodes 4, …, inputs 128, targets 80"."""
    rest = {name: value for name, value in settings.items() if name not in ("method", "task_feature_lengths")}
    numbers = {**rest, **settings.get("task_feature_lengths", {})}
    return ", ".join([str(settings.get("method")), *(f"{name} {value}" for name, value in numbers.items())])
