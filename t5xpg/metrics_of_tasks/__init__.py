"""Metric functions for SeqIO tasks, in SeqIO's signatures: name them in a task's `metric_fns`.

    from t5xpg import metrics_of_tasks
    seqio.TaskRegistry.add("my_translation", …, metric_fns=[metrics_of_tasks.bleu, metrics_of_tasks.chrf])

A function of (targets, predictions) gets what the task's `postprocess_fn` makes of each example, by default the text;
one of (targets, scores) gets log-likelihoods in nats, one number for each example. All numbers are averages over the
examples (BLEU, chrF, the likelihoods: over the whole split) and go from 0 to 100, as in `t5.evaluation.metrics`; only
likelihoods have units of their own. A target is one reference or a list of several, of which the best one counts.
Options are keyword arguments: `functools.partial(bleu, tokenize="13a")`.

| function | gives | computed by |
|---|---|---|
| `accuracy`, `macro_f1` | `accuracy`; `macro_f1` over the classes of the targets | scikit-learn |
| `majority` | `majority`, the accuracy of the most frequent class of the targets | |
| `exact_match` | `exact_match` | |
| `token_f1` | `token_f1` of words | |
| `squad` | `em`, `f1` after the normalisation of the official script | |
| `trivia_qa` | `em`, `f1` after that of TriviaQA's, over all aliases | |
| `bleu`, `chrf` | `bleu`, `chrf` and the signature as a text | sacrebleu |
| `rouge` | `rouge1`, `rouge2`, `rougeLsum` | rouge-score |
| `edit_similarity` | `edit_similarity` of characters, that of code completion | editdistance |
| `next_line` | both of predicted lines, and of the line before and the most frequent one | as these |
| `perplexity` | `nats_per_byte`, `bits_per_byte`, `byte_perplexity`, `word_perplexity` (of scores) | |

Importing this package loads none of these libraries: they are imported when a metric is computed.
"""

from t5xpg.metrics_of_tasks.answers import exact_match, squad, token_f1, trivia_qa
from t5xpg.metrics_of_tasks.classification import accuracy, macro_f1, majority
from t5xpg.metrics_of_tasks.completion import edit_similarity, next_line
from t5xpg.metrics_of_tasks.likelihood import perplexity
from t5xpg.metrics_of_tasks.summaries import rouge
from t5xpg.metrics_of_tasks.translation import bleu, chrf

__all__ = [
    "accuracy",
    "bleu",
    "chrf",
    "edit_similarity",
    "exact_match",
    "macro_f1",
    "majority",
    "next_line",
    "perplexity",
    "rouge",
    "squad",
    "token_f1",
    "trivia_qa",
]
