"""Translations, by sacrebleu: the numbers together with the signature that makes them comparable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from t5xpg.metrics_of_tasks.references import Target, check_pairs, references_of


def bleu(
    targets: Sequence[Target], predictions: Sequence[str], *, tokenize: str = "intl", lowercase: bool = False
) -> dict[str, Any]:
    """Corpus BLEU (Papineni et al. 2002) of sacrebleu and its signature, a `seqio.metrics.Text`.

    tokenize: sacrebleu's tokeniser; "intl" is that of T5's results, "13a" that of WMT's.
    """
    score, signature = corpus_bleu(targets, predictions, tokenize=tokenize, lowercase=lowercase)
    return {"bleu": score, "bleu_signature": _text(signature)}


def chrf(targets: Sequence[Target], predictions: Sequence[str], *, word_order: int = 0) -> dict[str, Any]:
    """Corpus chrF2 (Popović 2015) of sacrebleu and its signature, a `seqio.metrics.Text`; word_order=2 is chrF++."""
    score, signature = corpus_chrf(targets, predictions, word_order=word_order)
    return {"chrf": score, "chrf_signature": _text(signature)}


def corpus_bleu(
    targets: Sequence[Target], predictions: Sequence[str], *, tokenize: str = "intl", lowercase: bool = False
) -> tuple[float, str]:
    """BLEU and sacrebleu's signature. Examples may have different numbers of references."""
    from sacrebleu.metrics.bleu import BLEU

    # force: it would warn of text that looks tokenised already
    return _score(BLEU(tokenize=tokenize, lowercase=lowercase, force=True), targets, predictions)


def corpus_chrf(targets: Sequence[Target], predictions: Sequence[str], *, word_order: int = 0) -> tuple[float, str]:
    """chrF and sacrebleu's signature. Examples may have different numbers of references."""
    from sacrebleu.metrics.chrf import CHRF

    return _score(CHRF(word_order=word_order), targets, predictions)


def _score(metric: Any, targets: Sequence[Target], predictions: Sequence[str]) -> tuple[float, str]:
    check_pairs(targets, predictions)
    # sacrebleu takes the first references of all examples, then the second ones; None where an example has fewer
    streams = [list(stream) for stream in itertools.zip_longest(*map(references_of, targets))]
    score = metric.corpus_score(list(predictions), streams)
    return float(score.score), str(metric.get_signature())


def _text(text: str) -> Any:
    """A text among numbers, as SeqIO's evaluator and its loggers take one."""
    from seqio.metrics import Text

    return Text(text)
