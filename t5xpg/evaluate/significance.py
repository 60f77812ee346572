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

from t5xpg.base.errors import UserError
from t5xpg.base.files import json_object_if_any, read_json, write_json
from t5xpg.base.markdown import aligned
from t5xpg.base.paths import shown
from t5xpg.data import metrics
from t5xpg.run.command_options import options_of
from t5xpg.run.directory import RunDirectory
from t5xpg.run.results import SIGNIFICANCE, significance_rows

SEED, SAMPLES = 12345, 1000
# Metrics that are means over the examples.
_MEANS: Mapping[str, Callable[..., Mapping[str, float]]] = {
    "exact_match": metrics.exact_match, "token_f1": metrics.token_f1, "edit_similarity": metrics.edit_similarity,
    "codexglue_exact_match": metrics.codexglue, "accuracy": metrics.accuracy,
}  # fmt: skip


def compare(run: RunDirectory, other: RunDirectory, split: str | None = None) -> dict[str, Any]:
    """Compare the predictions of two runs in their last `make eval` of a split (None: validation), metric by metric.

    Writes the result into the run's evaluation/[<split>/]significance.json, prints it and returns it. Leaves out
    metrics that the saved predictions of either run do not reproduce. Raises UserError if none is left, or if the
    examples of the runs differ.
    """
    folders = [each.evaluation / (split or "") for each in (run, other)]
    file, other_file = (
        each.evaluation / split / "evaluation.json" if split else each.evaluation_json for each in (run, other)
    )
    if not file.exists():
        options = f"{options_of(run)}{f' SPLIT={split}' if split else ''}"
        raise UserError(f"{file} is missing: make eval {options} writes it.")
    evaluation, other_metrics = read_json(file), json_object_if_any(other_file).get("metrics", {})
    facts = {"run": run.path.name, "other": other.path.name}
    facts |= {name: evaluation[name] for name in ("step", "split", "mean_of_checkpoints") if name in evaluation}
    tasks: dict[str, dict[str, Any]] = {}
    for task, values in evaluation.get("metrics", {}).items():
        lines, other_lines = (_lines(folder / "predictions" / f"{task.replace(':', '_')}.jsonl") for folder in folders)
        pairs = [[(one.get("inputs"), one["target"]) for one in of_run] for of_run in (lines, other_lines)]
        if pairs[0] != pairs[1]:
            raise UserError(f"{folders[0]} and {folders[1]} are of other inputs or targets of {task}: evaluate anew.")
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
        raise UserError(f"{file} has no metric that can be resampled: BLEU, chrF, {', '.join(_MEANS)}.")
    result = {**facts, "samples": SAMPLES, "seed": SEED, "tasks": tasks}
    write_json(folders[0] / SIGNIFICANCE, result)
    print("\n".join(aligned(*significance_rows(result))))
    print(f"written to {shown(folders[0] / SIGNIFICANCE)}", flush=True)
    return result


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
