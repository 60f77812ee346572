"""A test of whether two runs differ by more than chance: a paired bootstrap of their predictions (Koehn 2004).

Examples are drawn with replacement, the same examples for both runs. p, as in sacrebleu, is the share of draws whose
absolute difference exceeds the mean absolute difference of all draws by more than the measured difference; unlike
there, 1 for two runs that do not differ in any draw.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.files import write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.paths import shown
from t5xpg.data import metrics
from t5xpg.run.command_options import options_of
from t5xpg.run.directory import RunDirectory
from t5xpg.run.evaluations import Evaluation, all_of
from t5xpg.run.numbers import significance_rows

SEED, SAMPLES = 12345, 1000
# Metrics that are means over the examples.
_MEANS: Mapping[str, Callable[..., Mapping[str, float]]] = {
    "exact_match": metrics.exact_match, "token_f1": metrics.token_f1, "edit_similarity": metrics.edit_similarity,
    "codexglue_exact_match": metrics.codexglue, "accuracy": metrics.accuracy,
}  # fmt: skip


def compare_predictions(
    run: RunDirectory,
    other: RunDirectory,
    split: str | None = None,
    name: str | None = None,
    other_name: str | None = None,
) -> dict[str, Any]:
    """Compare the predictions of two runs in one evaluation of each, metric by metric.

    split: the newest evaluations of this split are compared (None: of the run's own validation split), of the other run
    one that was made in the same way, if there is one. name, other_name: of the folders of evaluations to take instead.
    Writes the result as significance.json beside the run's record, prints it and returns it; it names what differs in
    more than the run. Leaves out metrics that the saved predictions of either run do not reproduce. Raises UserError if
    none is left, if the examples of the runs differ, or if an evaluation is compared with itself.
    """
    own = _chosen(run, split, name)
    theirs = _chosen(other, own.record["split"], other_name, like=own)
    if own.folder.resolve() == theirs.folder.resolve():
        raise UserError(
            f"{shown(own.folder)} would be compared with itself: name another run with OTHER=…, or two evaluations of "
            f"this one with EVALUATION=… and OTHER_EVALUATION=…: {', '.join(one.folder.name for one in all_of(run))}."
        )
    evaluation, other_metrics = own.record, theirs.record.get("metrics", {})
    parts = own.record["parts"], theirs.record["parts"]
    different = [key for key in dict.fromkeys([*parts[0], *parts[1]]) if parts[0].get(key) != parts[1].get(key)]
    titles = [
        ", ".join([each.path.name, *(of_run.get(key, f"{key} of training") for key in different)])
        for each, of_run in zip((run, other), parts, strict=True)
    ]
    if different:
        print(f"the two differ in more than the run: {', '.join(different)}")
    facts = {"run": titles[0], "other": titles[1]}
    facts |= {key: evaluation[key] for key in ("step", "split", "mean_of_checkpoints") if key in evaluation}
    tasks: dict[str, dict[str, Any]] = {}
    for task, values in evaluation.get("metrics", {}).items():
        lines, other_lines = (_lines(each.predictions(task)) for each in (own, theirs))
        pairs = [[(one.get("inputs"), one["target"]) for one in of_run] for of_run in (lines, other_lines)]
        if pairs[0] != pairs[1]:
            folders = " and ".join(shown(each.folder) for each in (own, theirs))
            raise UserError(f"{folders} are of other inputs or targets of {task}: evaluate both on the same text.")
        predictions = [[line.get("prediction") for line in of_run] for of_run in (lines, other_lines)]
        for name, value in values.items() if "prediction" in lines[0] else ():
            signature, targets = values.get(f"{name}_signature"), [line["target"] for line in lines]
            try:
                compared = paired_bootstrap(name, signature, targets, predictions)
            except (AttributeError, LookupError, TypeError, ValueError):
                continue  # a metric of the user that has the name of another one
            recorded = value, other_metrics.get(task, {}).get(name)
            if compared is None or None in recorded:
                continue
            if np.allclose(recorded, (compared["score"], compared["other_score"]), 0, 1e-6):
                tasks.setdefault(task, {})[name] = compared
    if not tasks:
        raise UserError(f"{shown(own.folder)} has no metric that can be resampled: BLEU, chrF, {', '.join(_MEANS)}.")
    result = {**facts, "samples": SAMPLES, "seed": SEED, "tasks": tasks}
    write_json(own.significance_json, result)
    print("\n".join(aligned(*significance_rows(result))))
    print(f"written to {shown(own.significance_json)}", flush=True)
    return result


def _chosen(run: RunDirectory, split: str | None, name: str | None, like: Evaluation | None = None) -> Evaluation:
    """An evaluation of a run, by the name of its folder, or the newest of a split: one made as `like`, if there is one.
    Raises UserError where there is none."""
    run.read()
    found = all_of(run)
    if name is not None:
        by_name = {one.folder.name: one for one in found}
        if name not in by_name:
            raise UserError(f"{shown(run.path)} has no evaluation {name!r}.{nearest(name, by_name)}")
        return by_name[name]
    found = [one for one in found if one.samples_json.exists() if split is None] or [
        one for one in found if split in (None, one.record["split"])
    ]
    alike = [one for one in found if like and one.record["parts"] == like.record["parts"]]
    if not found:
        options = f"{options_of(run)}{f' SPLIT={split}' if split else ''}"
        raise UserError(f"{shown(run.path)} was not evaluated{f' on {split}' if split else ''}: make eval {options}")
    return (alike or found)[0]


def paired_bootstrap(
    name: str, signature: str | None, targets: Sequence[Any], predictions: Sequence[Sequence[Any]]
) -> dict[str, Any] | None:
    """The bootstrap of a metric: {"score", "other_score", "mean", …}; None for a metric that is not known here.

    signature: sacrebleu's, for a corpus metric. predictions: of both runs. "mean", "other_mean" and "difference" (this
    run minus the other) are over the draws, each as [mean, lower end, upper end of the middle 95%].
    """
    if (mean := _MEANS.get(name)) is not None:
        pairs = [zip(targets, answers, strict=True) for answers in predictions]
        statistics = [[[mean([target], [answer])[name]] for target, answer in of_run] for of_run in pairs]

        def score(total: np.ndarray) -> float:
            return float(total[0]) / len(targets)
    elif signature or name == "codexglue_bleu":
        metric = _metric_of_signature(signature or "tok:none|smooth:none|case:mixed")
        text = metrics.join_bpe if name == "token_bleu" else str
        references = [[one and text(one) for one in stream] for stream in metrics.reference_streams(targets)]
        statistics = [
            metric._extract_corpus_statistics(list(map(text, answers)), references) for answers in predictions
        ]

        def score(total: np.ndarray) -> float:
            bleu_or_chrf = metric._compute_score_from_stats(total.tolist())
            return metrics.smoothed_bleu(bleu_or_chrf) if name == "codexglue_bleu" else float(bleu_or_chrf.score)
    else:
        return None
    arrays = [np.asarray(of_run, np.float64) for of_run in statistics]
    draws = np.random.default_rng(SEED).choice(len(targets), size=(SAMPLES, len(targets)))
    drawn = [np.array([score(array[draw].sum(0)) for draw in draws]) for array in arrays]
    own, other = (score(array.sum(0)) for array in arrays)
    distances = np.abs(drawn[0] - drawn[1])
    beyond = int((distances - distances.mean() > abs(own - other)).sum())
    ends = [SAMPLES // 40, -SAMPLES // 40 - 1]  # as sacrebleu takes them
    columns = zip(("mean", "other_mean", "difference"), [*drawn, drawn[0] - drawn[1]], strict=True)
    means = {part: [float(scores.mean()), *np.sort(scores)[ends].tolist()] for part, scores in columns}
    p = (beyond + 1) / (SAMPLES + 1) if distances.any() else 1.0
    return {"score": own, "other_score": other, **means, "p": p}


def _metric_of_signature(signature: str) -> Any:
    """The sacrebleu metric that has this signature."""
    from sacrebleu.metrics import BLEU, CHRF

    facts = dict(part.split(":", 1) for part in signature.split("|"))
    if "nw" in facts:
        return CHRF(word_order=int(facts["nw"]))
    return BLEU(tokenize=facts["tok"], smooth_method=facts["smooth"], lowercase=facts["case"] == "lc", force=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(f"{path} is missing: evaluate both runs (make eval) by the same task and split.")
    return [json.loads(line) for line in path.read_bytes().splitlines()]
