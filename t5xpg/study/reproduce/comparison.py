"""Comparison of published results with those of a run that repeats them: the numbers and their conditions.

Numbers decide: bit for bit on the published kind of hardware, within a tolerance on another. The conditions (code,
settings, data, versions, hardware) explain differences.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flax.traverse_util import flatten_dict

from t5xpg.base import environment
from t5xpg.run.directory import NOT_SET, differing

TOLERANCE = 0.02
"""The largest difference on other hardware: relative for losses and metrics, absolute for accuracies.

Another kind of processor adds up in another order, which moves a float32 sum by about 1e-7 of itself, and training
amplifies that: where the loss falls steeply, two runs come to be a few updates, and about a percent of it, apart.
"""

SAME, WITHIN, DIFFERENT = "same", "within tolerance", "different"
CHANGED, UNKNOWN, NOT_COMPARED = "changed", "not known", "not compared"

# What a change of these parts of the identity means: the run is another one, and cannot repeat the numbers.
_DECIDING = ("settings", "seed", "data", "vocabulary", "initial", "teacher")
# Other versions of these add up in another order.
_COMPILING = ("jax", "jaxlib")
_NO_VALUE = "-"
_TEXT_WIDTH = 34

Results = Mapping[str, Any]
# (record, step, measure): value, such as ("curve", 100, "loss"): 2.5
Values = dict[tuple[str, int, str], Any]


@dataclass(frozen=True)
class ComparedValue:
    """One line of the comparison: a label, its value as published and here, and one of the verdicts above."""

    what: str
    published: str
    here: str
    verdict: str


@dataclass(frozen=True)
class ResultsComparison:
    """numbers: those that the run determines. conditions: of the run, a row for every part and for every change.

    exact: whether the numbers had to be the same bit for bit. largest: the largest difference among them, relative or
    (of accuracies) absolute; infinite where a value is missing on one side.
    """

    numbers: tuple[ComparedValue, ...]
    conditions: tuple[ComparedValue, ...]
    exact: bool
    largest: float

    @property
    def same(self) -> bool:
        """True if no number is different."""
        return all(row.verdict != DIFFERENT for row in self.numbers)

    @property
    def changed(self) -> list[str]:
        """The parts that changed: some of "code", "settings", "data", "versions", "hardware", …"""
        return list(dict.fromkeys(row.what.split(":")[0] for row in self.conditions if row.verdict == CHANGED))


def compare(
    published: Results, here: Results, *, steps: int, changed_files: Sequence[str] | None = None
) -> ResultsComparison:
    """Compare published results with those of a run of `steps` updates, both as `results.collect` makes them.

    here: collected at the published steps of the training curve. What was published after `steps`, or not at all, is
    not compared. changed_files: the files of the code that changed since the published commit; None if not known.
    """
    exact = (
        environment.is_same_cpu(published["hardware"]["cpu"], here["hardware"]["cpu"])
        and published["hardware"]["devices"] == here["hardware"]["devices"]
        and published["hardware"]["cores"] == here["hardware"]["cores"]  # how many decides the order of sums
        and published["hardware"].get("xla_flags") in (None, here["hardware"].get("xla_flags"))
        and not other_stack(published["versions"], here["versions"])
    )
    whole = steps == published["steps"]
    parts = [
        _batches(published.get("batches"), here.get("batches"), steps),
        _curve("validation", published, here, steps, exact),
        _curve("train", published, here, steps, exact),
        *(_count(name, published, here) for name in ("num_params", *(("target_tokens", "examples") if whole else ()))),
        *_evaluation(published, here, whole, exact),
    ]
    return ResultsComparison(
        numbers=tuple(row for row, _ in parts),
        conditions=tuple(conditions(published, here, changed_files)),
        exact=exact,
        largest=max((difference for _, difference in parts), default=0.0),
    )


def other_stack(published: Results, here: Results) -> list[str]:
    """The packages that compile a run's programs and have another version here: ["jaxlib 0.10.2, here 0.12.0.1"]."""
    pairs = ((name, published.get(name), here.get(name)) for name in _COMPILING)
    return [f"{name} {old}, here {new}" for name, old, new in pairs if old and old != new]


def conditions(
    published: Results, here: Results, changed_files: Sequence[str] | None = None
) -> Iterator[ComparedValue]:
    """Yields the conditions of the numbers: a row for every part that is the same, and for every value that changed."""
    yield _code(published.get("git"), here.get("git"), changed_files)
    yield from identity(published["identity"], here["identity"])
    for part in ("versions", "hardware"):
        yield from _leaves(part, published[part], here[part])


def identity(published: Results, here: Results) -> Iterator[ComparedValue]:
    """Yields the rows of a run's identity: settings, seed, data, cache, vocabulary, initial checkpoint, teacher.

    A part that is not known here (yet) is left out, and a value that only one side knows is no change: the program
    may have learnt to record it since.
    """
    for part in ("settings", "seed", "data", "cache", "vocabulary", "initial", "teacher"):
        if part not in published or part not in here:
            continue
        if part == "cache" and _cache_formats(published[part]) != _cache_formats(here[part]):
            yield ComparedValue(part, "made by another format", "", NOT_COMPARED)
        else:
            yield from _leaves(part, published[part], here[part])


def _cache_formats(cache: Any) -> set[Any]:
    """The format in a cache's definition, or the formats in those of several tasks (`t5xpg.data.cache.definition`)."""
    definitions = (cache, *cache.values()) if isinstance(cache, Mapping) else ()
    return {one["format"] for one in definitions if isinstance(one, Mapping) and "format" in one}


def other_run(rows: Sequence[ComparedValue]) -> list[ComparedValue]:
    """The rows of `identity` whose change makes the run another one, which cannot repeat the published numbers."""
    return [row for row in rows if row.verdict == CHANGED and row.what.split(":")[0] in _DECIDING]


def _leaves(part: str, old: Any, new: Any) -> Iterator[ComparedValue]:
    changes = {
        name: (before, after)
        for name, (before, after) in differing({part: _index_lists(old)}, {part: _index_lists(new)}).items()
        if NOT_SET not in (before, after) and name != "hardware.memory_bytes"
    }
    if not changes:
        yield ComparedValue(part, "", "", SAME)
    for name, (before, after) in changes.items():
        what = part if name == part else f"{part}: {name.removeprefix(part + '.')}"
        yield ComparedValue(what, *_texts(before, after), CHANGED)


def _index_lists(value: Any) -> Any:
    """A JSON value in which lists of mappings are mappings by index, so that a difference in them has a name."""
    if isinstance(value, Mapping):
        return {name: _index_lists(inner) for name, inner in value.items()}
    if isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        return {str(place): _index_lists(inner) for place, inner in enumerate(value)}
    return value


def _code(old: Results | None, new: Results | None, changed_files: Sequence[str] | None) -> ComparedValue:
    before, after = (
        _NO_VALUE if git is None else git["commit"][:12] + ("" if git["clean"] else " and changes")
        for git in (old, new)
    )
    if old is None or new is None:
        return ComparedValue("code", before, after, UNKNOWN)
    if changed_files is None:
        same = old["commit"] == new["commit"] and old["clean"] and new["clean"]
    else:
        same = old["clean"] and not changed_files
        after += f": {len(changed_files)} files differ" if len(changed_files) > 1 else ""
        after += f": {changed_files[0]} differs" if len(changed_files) == 1 else ""
    return ComparedValue("code", before, after, SAME if same else CHANGED)


def _batches(old: Results | None, new: Results | None, steps: int) -> tuple[ComparedValue, float]:
    """Compare the batches that the runs were fed; these do not depend on the hardware."""
    before, after = ({} if one is None else dict(zip(one["step"], one["sha256"], strict=True)) for one in (old, new))
    steps_of_both = [step for step in before if step in after and step <= steps]
    if not steps_of_both:
        return ComparedValue("batches", _NO_VALUE, _NO_VALUE, NOT_COMPARED), 0.0
    shown = next((step for step in steps_of_both if before[step] != after[step]), steps_of_both[-1])
    same = before[shown] == after[shown]
    row = ComparedValue(
        f"batches to step {shown:,}", before[shown][:12] + "…", after[shown][:12] + "…", SAME if same else DIFFERENT
    )
    return row, 0.0 if same else math.inf


def _curve(split: str, published: Results, here: Results, steps: int, exact: bool) -> tuple[ComparedValue, float]:
    old, new = _values(published, split, steps), _values(here, split, steps)
    measures = {measure for _, _, measure in old}
    if steps < published["steps"]:  # the last and the best of a shorter run are others
        old, new = ({key: one for key, one in side.items() if key[0] not in ("final", "best")} for side in (old, new))
    keys = [*old, *(key for key in new if key not in old and key[2] in measures)]
    label = "training" if split == "train" else split
    if not keys:
        return ComparedValue(f"{label} loss", _NO_VALUE, _NO_VALUE, NOT_COMPARED), 0.0
    distances = {key: distance(key[2], old.get(key), new.get(key)) for key in keys}
    worst = max(keys, key=lambda key: distances[key])
    last = max((key for key in keys if key[2] == "loss"), key=lambda key: key[1], default=worst)
    shown = worst if distances[worst] else last
    count = len({step for _, step, _ in keys})
    row = ComparedValue(
        f"{label} {shown[2].replace('_', ' ')} at step {shown[1]:,} ({count} point{'s'[: count > 1]} compared)",
        *_texts(old.get(shown), new.get(shown)),
        _verdict(distances[worst], exact),
    )
    return row, distances[worst]


def _values(results: Results, split: str, steps: int) -> Values:
    columns = results["curves"][split]
    numbers = {
        ("curve", step, name): value
        for name, values in columns.items()
        if name != "step"
        for step, value in zip(columns["step"], values, strict=True)
        if step <= steps
    }
    points = {"first": results["first"][split], "final": results["final"][split]}
    if split == "validation":
        points["best"] = results["best_validation"]
    for record, point in points.items():
        if point is not None and point["step"] <= steps:
            numbers |= {(record, point["step"], name): value for name, value in point.items() if name != "step"}
    return numbers


def _count(name: str, published: Results, here: Results) -> tuple[ComparedValue, float]:
    old, new = published.get(name), here.get(name)
    label = {"num_params": "parameters"}.get(name, name.replace("_", " "))
    if old is None:
        return ComparedValue(label, _NO_VALUE, _NO_VALUE, NOT_COMPARED), 0.0
    return ComparedValue(label, *_texts(old, new), SAME if old == new else DIFFERENT), distance(name, old, new)


def _evaluation(published: Results, here: Results, whole: bool, exact: bool) -> Iterator[tuple[ComparedValue, float]]:
    old, new = published.get("evaluation"), here.get("evaluation")
    if old is None:
        return
    if not whole:
        yield ComparedValue("evaluation", _NO_VALUE, _NO_VALUE, NOT_COMPARED), 0.0
        return
    old_numbers, new_numbers = (  # what was read is part of the identity
        flatten_dict({name: value for name, value in (one or {}).items() if name != "data"}, sep="/")
        for one in (old, new)
    )
    distances = {name: distance(name, value, new_numbers.get(name)) for name, value in old_numbers.items()}
    worst = max(distances, key=lambda name: distances[name])
    shown = worst if distances[worst] or "loss" not in old_numbers else "loss"
    values = _texts(old_numbers[shown], new_numbers.get(shown))
    yield ComparedValue(f"evaluation: {shown}", *values, _verdict(distances[worst], exact)), distances[worst]
    yield from _samples(published.get("samples"), here.get("samples"), exact)


def _samples(old: Any, new: Any, exact: bool) -> Iterator[tuple[ComparedValue, float]]:
    """Compare greedy predictions. A small change can give quite other ones: a difference counts only where `exact`."""
    if not old:
        return
    equal = sum(before == after for before, after in zip(old, new or [], strict=False))
    same = equal == len(old) == len(new or [])
    verdict = SAME if same else DIFFERENT if exact else NOT_COMPARED
    yield (
        ComparedValue("sample predictions", str(len(old)), f"{equal} equal", verdict),
        0.0 if same or not exact else math.inf,
    )


def distance(name: str, old: Any, new: Any) -> float:
    """The distance of two values: absolute for accuracies, else relative; infinite for unequal integers or texts."""
    if old == new:
        return 0.0
    if not (isinstance(old, int | float) and isinstance(new, int | float)) or isinstance(old, int):
        return math.inf
    size = 1.0 if "accuracy" in name else max(abs(old), abs(new))
    return abs(old - new) / size


def _verdict(difference: float, exact: bool) -> str:
    if difference == 0:
        return SAME
    return WITHIN if not exact and difference <= TOLERANCE else DIFFERENT


def _texts(old: Any, new: Any) -> tuple[str, str]:
    """Two values as texts, with as few digits as show their difference."""
    for digits in (6, 9, 17):
        texts = _text(old, digits), _text(new, digits)
        if old == new or texts[0] != texts[1]:
            break
    return texts


def _text(value: Any, digits: int) -> str:
    if value is None:
        return _NO_VALUE
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = " ".join(str(value).split())
    return text if len(text) <= _TEXT_WIDTH else text[: _TEXT_WIDTH - 1] + "…"
