"""Metric functions for SeqIO tasks, in SeqIO's signatures: name them in a task's `metric_fns`.

    from t5xpg.data import metrics
    seqio.TaskRegistry.add("my_translation", …, metric_fns=[metrics.bleu, metrics.chrf])

A function of (targets, predictions) gets the output of the task's `postprocess_fn` for each example, by default text;
one of (targets, scores) gets log-likelihoods in nats, one number for each example. All numbers are averages over the
examples (BLEU, chrF, correlations, the likelihoods: over the whole split) and go from 0 to 100 (correlations: from
-100), as in `t5.evaluation.metrics`; only likelihoods have units of their own.
A target is one reference or a list of several, of which the best one counts.
Options are keyword arguments: `functools.partial(bleu, tokenize="13a")`.

docs/metrics.md has a table of them. Importing this module loads no library: that is done when a metric is computed.
"""

import importlib
import inspect
import itertools
import math
import operator
import re
import statistics
import string
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from t5xpg.base.errors import UserError, nearest

# One text, or several that are equally right.
Target = str | Sequence[str]


def check_pairs(targets: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise ValueError without examples, or for different numbers of targets and outputs."""
    if len(targets) != len(outputs):
        raise ValueError(f"There are {len(targets)} targets and {len(outputs)} outputs of the model.")
    if not len(targets):
        raise ValueError("There are no examples: nothing can be measured.")


def references_of(target: Target) -> list[str]:
    """The references of one example. Raises ValueError without any."""
    references = [target] if isinstance(target, str) else list(target)
    if not references:
        raise ValueError("An example has no reference: nothing can be compared with it.")
    return references


def mean_of_best(score: Callable[[str, str], float], targets: Sequence[Target], predictions: Sequence[str]) -> float:
    """100 times the mean over the examples of `score(reference, prediction)` with the best reference."""
    check_pairs(targets, predictions)
    best = (
        max(score(reference, prediction) for reference in references_of(target))
        for target, prediction in zip(targets, predictions, strict=True)
    )
    return 100.0 * sum(best) / len(targets)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SQUAD_PUNCTUATION = str.maketrans("", "", string.punctuation)
_QUOTATION_MARKS = "\u2018\u2019\u00b4`"
_TRIVIA_QA_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + _QUOTATION_MARKS, " "))


def exact_match(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """Share of the predictions that are one of their references, character by character."""
    return {"exact_match": mean_of_best(_equal, targets, predictions)}


def token_f1(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """F1 of the words between white space, without normalisation. Two texts without words agree."""
    return {"token_f1": mean_of_best(_f1, targets, predictions)}


def squad(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """SQuAD's "exact" and "f1" (Rajpurkar et al. 2016, 2018) as in evaluate-v2.0.py: lower case, no punctuation, no
    articles. The target of a question without an answer is ""; answers that the normalisation empties ("The") count
    last.
    """
    return _match_and_f1(targets, predictions, _SQUAD_PUNCTUATION, only_with_text=True)


def trivia_qa(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """TriviaQA's exact match and F1 (Joshi et al. 2017) over the aliases, normalised as in its script (no articles), by
    which the F1 of two texts that this empties is 0."""
    return _match_and_f1(targets, predictions, _TRIVIA_QA_PUNCTUATION, only_with_text=False)


def _match_and_f1(
    targets: Sequence[Target], predictions: Sequence[str], punctuation: Mapping[int, Any], *, only_with_text: bool
) -> dict[str, float]:
    def normalized(text: str) -> str:
        return " ".join(_ARTICLES.sub(" ", text.lower().translate(punctuation)).split())

    check_pairs(targets, predictions)
    references = [list(map(normalized, references_of(target))) for target in targets]
    if only_with_text:
        references = [list(filter(None, answers)) or [""] for answers in references]
    answered = list(map(normalized, predictions))
    f1 = _f1 if only_with_text else lambda reference, prediction: _f1(reference, prediction) if prediction else 0.0
    return {"em": mean_of_best(_equal, references, answered), "f1": mean_of_best(f1, references, answered)}


def _equal(reference: str, prediction: str) -> float:
    return float(reference == prediction)


def _f1(reference: str, prediction: str) -> float:
    expected, found = reference.split(), prediction.split()
    if not expected or not found:
        return float(expected == found)
    common = sum((Counter(expected) & Counter(found)).values())
    return 2.0 * common / (len(expected) + len(found))


def accuracy(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """Share of the examples whose class was predicted."""
    check_pairs(targets, predictions)
    return {"accuracy": 100.0 * (sum(map(operator.eq, targets, predictions)) / len(targets))}


def macro_f1(
    targets: Sequence[Hashable], predictions: Sequence[Hashable], *, labels: Sequence[Hashable] | None = None
) -> dict[str, float]:
    """The mean F1 of the classes of `labels`, by default of the targets. A prediction of another class is a miss for
    its target's; a class without targets and predictions counts 0."""
    from sklearn.metrics import f1_score

    check_pairs(targets, predictions)
    chosen = list(dict.fromkeys(targets if labels is None else labels))
    expected, found, numbers = _class_numbers(targets, predictions, chosen)
    return {"macro_f1": 100.0 * float(f1_score(expected, found, labels=numbers, average="macro", zero_division=0.0))}


def matthews_corrcoef(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """Matthews' correlation of any number of classes (Gorodkin 2004), 100 at best and -100 at worst, as GLUE measures
    CoLA with; 0 where all targets or all predictions are of one class."""
    check_pairs(targets, predictions)
    count, expected, found = len(targets), Counter(targets), Counter(predictions)
    equal = sum(map(operator.eq, targets, predictions))
    spread = math.prod(count**2 - sum(number**2 for number in numbers.values()) for numbers in (expected, found))
    covariance = count * equal - sum(number * found[label] for label, number in expected.items())
    return {"matthews_corrcoef": 100.0 * covariance / math.sqrt(spread) if spread else 0.0}


def pearson_corrcoef(
    targets: Sequence[str | float], predictions: Sequence[str | float], *, default: float = -1.0
) -> dict[str, float]:
    """Pearson's correlation of the numbers, 100 at best and -100 at worst, as GLUE measures STS-B with; 0 where all
    targets or all predictions are equal. default: for a prediction that is no number (T5's string_to_float)."""
    check_pairs(targets, predictions)
    try:
        found = [_number(prediction, default) for prediction in predictions]
        return {"pearson_corrcoef": 100.0 * statistics.correlation([float(target) for target in targets], found)}
    except statistics.StatisticsError:  # a constant
        return {"pearson_corrcoef": 0.0}


def _number(text: str | float, default: float) -> float:
    try:
        return number if math.isfinite(number := float(text)) else default
    except ValueError:
        return default


def _class_numbers(*sequences: Sequence[Hashable]) -> list[list[int]]:
    """The same number for the same class everywhere: scikit-learn mixes no types, and models predict anything."""
    numbers: dict[Hashable, int] = {}
    return [[numbers.setdefault(label, len(numbers)) for label in labels] for labels in sequences]


def edit_similarity(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """The mean of 100 * (1 - Levenshtein distance / length of the longer text), in code points (Svyatkovskiy et al.
    2020); two empty texts are alike. CodeXGLUE's scripts count a replaced character twice."""
    return {"edit_similarity": mean_of_best(_similarity, targets, predictions)}


def _similarity(reference: str, prediction: str) -> float:
    import editdistance

    longer = max(len(reference), len(prediction))
    return 1.0 - editdistance.distance(reference, prediction) / longer if longer else 1.0


_LARGEST_EXPONENT = 700.0  # of a finite float


def perplexity(targets: Sequence[str], scores: Sequence[Any]) -> dict[str, float]:
    """Negative log-likelihood of the targets per UTF-8 byte, in nats and bits, and the perplexities of bytes and words.

    targets: texts. scores: log-likelihoods in nats, summed over the tokens, the end included. The sums over the split
    are divided by its bytes or words (what white space divides). Choose lengths that hold the targets: one that is cut
    counts with all its bytes. Raises ValueError if the targets have no byte.
    """
    check_pairs(targets, scores)
    nats = -math.fsum(float(score) for score in scores)
    num_bytes = sum(len(text.encode("utf-8", errors="surrogatepass")) for text in targets)
    if not num_bytes:
        raise ValueError("The targets are empty: their likelihood cannot be divided by their bytes.")
    words = sum(len(text.split()) for text in targets)

    def exp(value: float) -> float:
        return math.inf if value > _LARGEST_EXPONENT else math.exp(value)

    return {
        "nats_per_byte": nats / num_bytes,
        "bits_per_byte": nats / num_bytes / math.log(2),
        "byte_perplexity": exp(nats / num_bytes),
        "word_perplexity": exp(nats / words) if words else math.inf,
    }


_ROUGE_KINDS = ("rouge1", "rouge2", "rougeLsum")


def rouge(targets: Sequence[Target], predictions: Sequence[str], *, use_stemmer: bool = False) -> dict[str, float]:
    """ROUGE-1, -2 and -Lsum (Lin 2004): 100 times the mean F measure. Sentences are lines; " . " ends one too, as in
    T5's evaluation (medians of resampled means). Words are rouge-score's: a-z and 0-9 after lower-casing."""
    from rouge_score.rouge_scorer import RougeScorer

    check_pairs(targets, predictions)
    scorer = RougeScorer(list(_ROUGE_KINDS), use_stemmer=use_stemmer)
    sums = dict.fromkeys(_ROUGE_KINDS, 0.0)
    for target, prediction in zip(targets, predictions, strict=True):
        best = scorer.score_multi([_in_lines(reference) for reference in references_of(target)], _in_lines(prediction))
        for kind in _ROUGE_KINDS:
            sums[kind] += best[kind].fmeasure
    return {kind: 100.0 * total / len(targets) for kind, total in sums.items()}


def _in_lines(text: str) -> str:
    return text.replace(" . ", " .\n")


def bleu(
    targets: Sequence[Target], predictions: Sequence[str], *, tokenize: str = "intl", lowercase: bool = False
) -> dict[str, Any]:
    """Corpus BLEU (Papineni et al. 2002) and its signature. tokenize: sacrebleu's; "intl" is T5's, "13a" WMT's."""
    from sacrebleu.metrics.bleu import BLEU

    # force: it would warn of text that looks tokenised already
    return _corpus_metric("bleu", BLEU(tokenize=tokenize, lowercase=lowercase, force=True), targets, predictions)


def bleu_13a(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, Any]:
    """`bleu` with the tokeniser of WMT, sacrebleu's default."""
    return bleu(targets, predictions, tokenize="13a")


def chrf(targets: Sequence[Target], predictions: Sequence[str], *, word_order: int = 0) -> dict[str, Any]:
    """Corpus chrF2 (Popović 2015) of sacrebleu and its signature, a `seqio.metrics.Text`; word_order=2 is chrF++."""
    from sacrebleu.metrics.chrf import CHRF

    return _corpus_metric("chrf", CHRF(word_order=word_order), targets, predictions)


def token_bleu(targets: Sequence[Target], predictions: Sequence[str], *, lowercase: bool = False) -> dict[str, Any]:
    """Corpus BLEU-4 of the tokens that white space divides, without smoothing, once the pieces of BPE ("@@ ") are
    joined: what fairseq-generate and Moses' multi-bleu.perl compute. `token_bleu_parts` is the rest of what they print:
    precisions, brevity penalty, and the lengths in tokens. lowercase: of all letters (the script's -lc: of ASCII's).
    """
    from sacrebleu.metrics.bleu import BLEU
    from seqio.metrics import Text

    metric = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
    references = [[join_bpe(reference) for reference in references_of(target)] for target in targets]
    score = _corpus_score(metric, references, [join_bpe(prediction) for prediction in predictions])
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    lengths = f"ratio={score.ratio:.3f}, hyp_len={score.sys_len}, ref_len={score.ref_len}"
    parts = Text(f"{precisions} (BP={score.bp:.3f}, {lengths})")
    return {**_with_signature("token_bleu", metric, score), "token_bleu_parts": parts}


def join_bpe(text: str) -> str:
    """A text with the pieces of BPE joined to words."""
    return f"{text} ".replace("@@ ", "")


def codexglue(targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, float]:
    """BLEU and exact match of lines as the evaluator of CodeXGLUE's code-to-code translation (Lu et al. 2021) computes
    them. Tokens are what white space divides; lines are equal but for the white space around them. The evaluator takes
    one reference."""
    from sacrebleu.metrics.bleu import BLEU

    score = _corpus_score(BLEU(tokenize="none", smooth_method="none", force=True), targets, predictions)
    stripped = [[reference.strip() for reference in references_of(target)] for target in targets]
    equal = mean_of_best(_equal, stripped, [prediction.strip() for prediction in predictions])
    return {"codexglue_bleu": smoothed_bleu(score), "codexglue_exact_match": equal}


def smoothed_bleu(score: Any) -> float:
    """BLEU of sacrebleu's counts, with 1 added to matches and n-grams of every order, single tokens included."""
    pairs = zip(score.counts, score.totals, strict=True)
    logs = [math.log((matches + 1.0) / (total + 1.0)) for matches, total in pairs]
    return 100.0 * float(score.bp) * math.exp(sum(logs) / len(logs))


def _corpus_metric(name: str, metric: Any, targets: Sequence[Target], predictions: Sequence[str]) -> dict[str, Any]:
    return _with_signature(name, metric, _corpus_score(metric, targets, predictions))


def _with_signature(name: str, metric: Any, score: Any) -> dict[str, Any]:
    from seqio.metrics import Text

    return {name: float(score.score), f"{name}_signature": Text(str(metric.get_signature()))}


def _corpus_score(metric: Any, targets: Sequence[Target], predictions: Sequence[str]) -> Any:
    """sacrebleu's score of the split. Examples may have different numbers of references."""
    check_pairs(targets, predictions)
    return metric.corpus_score(list(predictions), reference_streams(targets))


def reference_streams(targets: Sequence[Target]) -> list[list[str | None]]:
    """References in sacrebleu's form: the first of all examples, then the second of all, …; None for a missing one."""
    return [list(stream) for stream in itertools.zip_longest(*map(references_of, targets))]


_ARGUMENTS = (["targets", "predictions"], ["targets", "scores"])


def metric_of(name: str) -> Callable[..., Any]:
    """The metric function of a name in METRICS: of one here, or of "module.function" in SeqIO's signature. Raises
    UserError for an unknown name."""
    check_metric_name(name)
    module, _, function = name.rpartition(".")
    try:
        metric: Callable[..., Any] = getattr(importlib.import_module(module or __name__), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(f"METRICS names {name}, which Python does not find: {error}.") from error
    if not _is_metric(metric):
        raise UserError(f"METRICS names {name}: expected a function of (targets, predictions) or (targets, scores).")
    return metric


def check_metric_name(name: str) -> None:
    """Raise UserError, with the nearest names, for a name without a module that is not of a metric."""
    known = {metric for metric, value in globals().items() if not metric.startswith("_") and _is_metric(value)}
    if "." not in name and name not in known:
        raise UserError(f"METRICS names {name}, which is no function of {__name__}.{nearest(name, known)}")


def _is_metric(function: Any) -> bool:
    try:
        return list(inspect.signature(function).parameters)[:2] in _ARGUMENTS
    except (TypeError, ValueError):  # no function, or one that does not say its parameters
        return False
