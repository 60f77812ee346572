"""`DecodingConfig`: the options of predictions that gin sets, and the methods that read each of them."""

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.seeds import check_seed
from t5xpg.models.config import is_count

METHODS = ("greedy", "beam", "sample", "rank")
T5X, TRANSFORMERS = "t5x", "transformers"
LENGTH_PENALTIES = (T5X, TRANSFORMERS)
LIKELIHOOD, CONSENSUS = "likelihood", "consensus"
RANKINGS = (LIKELIHOOD, CONSENSUS)
_LONGEST_SHOWN = 40  # characters of a pattern in records
# A temperature below it counts as 0, as in T5X.
MIN_TEMPERATURE = 1e-4

_READ_BY = {
    "num_decodes": ("beam", "sample", "rank"), "return_all_decodes": ("beam", "sample", "rank"),
    "length_penalty": ("beam",), "alpha": ("beam",), "early_stopping": ("beam",),
    "temperature": ("sample",), "topk": ("sample",), "topp": ("sample",), "seed": ("sample",),
    "rescale_log_probs": ("sample",), "ranked_by": ("sample",), "pattern": ("greedy", "beam", "sample"),
}  # fmt: skip


@dataclass(frozen=True)
class DecodingConfig:
    """A method of decoding and its options. An option that the method does not read must keep its default.

    The names are T5X's (`t5x.decoding`), except `method`, `extra_length`, `seed` (T5X: a key, `decode_rng`),
    `length_penalty` (T5X has one rule only), `ranked_by` and `early_stopping` (from transformers' `generate`).

    method: "greedy", "beam" (T5X's beam_search), "sample" (its temperature_sample) or "rank": every answer of `allowed`
      is scored, and the most probable ones are the predictions.
    max_decode_length: tokens of a prediction, its end included; None: the length of the task's targets.
    extra_length: the most tokens that a prediction may have beyond the length of its input; None: as many as
      max_decode_length allows. Vaswani et al. 2017 (section 6.1) took 50; the name is Tensor2Tensor's.
    num_decodes: beams, samples of a row, or ranked answers; None: T5X's defaults, 4 beams or 1 sample, and 1 answer.
    return_all_decodes: True returns all of them, the best first; False only the best (T5X's default).
    allowed: the answers that predictions may be, a tuple of texts or the name of a file with one on each line; None:
      any text. Scores of beams and ranks stay those of the model among all texts; those of samples are of the
      distribution that is drawn from, with rescale_log_probs.
    pattern: a regular expression that whole predictions match, in place of `allowed`; None: any text.

    Options of beams:
    length_penalty: the rule by which hypotheses of different lengths are compared and the search ends. With len tokens,
      including the end, and the sum of their log probabilities:
      "t5x": score = log probability / ((5 + len) / 6) ** alpha. Every hypothesis that ends among the best
        2 * num_decodes continuations is kept. A row is done when no unfinished hypothesis could still become one of the
        num_decodes best. One that reaches the length without an end counts only where too few have ended.
      "transformers": score = log probability / len ** alpha; alpha is what `generate` calls length_penalty. Only what
        ends among the best num_decodes continuations is kept; reaching the length is an end. early_stopping says when
        a row with num_decodes ended hypotheses is done. True: at once. False: when the best unfinished one, at its
        present length, is no better than the worst ended one. "never": when it could not be even at the full length.
    alpha: the exponent; 0 compares log probabilities. (transformers' default is 1.0.)

    Options of samples, applied in this order:
    temperature: logits are divided by it; 0 is greedy.
    topk: only the k most probable tokens (more where some are equal); 0: all.
    topp: of those, only the fewest whose probabilities add up to at least topp; 1.0 (or T5X's 0.0): all.
    rescale_log_probs: True: scores are of the distribution that these three leave; False: of the model's own.
    ranked_by: the choice of a row's best sample: "likelihood", the one with the highest score; "consensus", the one
      that is on average most like the others (minimum Bayes risk; `evaluate.consensus` ranks them).
    seed: of the samples, together with the numbers of the row, of its sample and of the position.

    Raises UserError for impossible values.
    """

    method: str = "greedy"
    max_decode_length: int | None = None
    num_decodes: int | None = None
    return_all_decodes: bool = True
    length_penalty: str = T5X
    alpha: float = 0.6
    early_stopping: bool | str = False
    temperature: float = 1.0
    topk: int = 0
    topp: float = 1.0
    rescale_log_probs: bool = True
    ranked_by: str = LIKELIHOOD
    seed: int = 0
    extra_length: int | None = None
    allowed: str | tuple[str, ...] | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        choices = {"method": METHODS, "length_penalty": LENGTH_PENALTIES, "ranked_by": RANKINGS}
        for name, known in choices.items():
            value = getattr(self, name)
            self._check(name, value in known, nearest(str(value), known).strip())
        for name in ("max_decode_length", "num_decodes"):
            is_good = getattr(self, name) is None or is_count(getattr(self, name))
            self._check(name, is_good, "it must be a whole number of at least 1, or None.")
        is_good = self.extra_length is None or is_count(self.extra_length, least=0)
        self._check("extra_length", is_good, "it must be a whole number of at least 0, or None.")
        is_good = _is_number(self.alpha) and (self.alpha >= 0 or self.length_penalty != T5X)
        self._check("alpha", is_good, "it must be a number, and at least 0 with T5X's penalty.")
        is_good = isinstance(self.early_stopping, bool) or self.early_stopping == "never"
        self._check("early_stopping", is_good, "it must be True, False or 'never'.")
        is_good = _is_number(self.temperature) and self.temperature >= 0
        self._check("temperature", is_good, "it must be a number of at least 0.")
        self._check("topk", is_count(self.topk, least=0), "it must be a whole number of at least 0 (0 for all tokens).")
        is_good = _is_number(self.topp) and 0 <= self.topp <= 1
        self._check("topp", is_good, "it must be a probability, 1.0 for all tokens.")
        check_seed(self.seed, "DecodingConfig.seed")
        for field in dataclasses.fields(self):
            methods = _READ_BY.get(field.name, METHODS)
            owners = " and ".join(f"'{method}'" for method in methods)
            is_good = self.method in methods or getattr(self, field.name) == field.default
            way = f'All others at their defaults: GIN="--gin_file=gin/decoding/{self.method}.gin"'
            self._check(field.name, is_good, f"it is an option of the method {owners}, not of {self.method!r}. {way}")
        is_good = self.allowed is None or (isinstance(self.allowed, str | tuple) and bool(self.allowed))
        self._check("allowed", is_good, "it must be a tuple of texts, the name of a file of lines, or None.")
        is_good = self.pattern is None or (isinstance(self.pattern, str) and self.allowed is None)
        self._check("pattern", is_good, "it must be a regular expression without DecodingConfig.allowed, or None.")
        is_good = self.extra_length is None or (self.allowed is None and self.pattern is None)
        self._check("extra_length", is_good, "answers of DecodingConfig.allowed or pattern end by themselves.")
        is_good = self.early_stopping is False or self.length_penalty != T5X
        self._check("early_stopping", is_good, "that is an option of length_penalty='transformers'.")

    @property
    def decodes(self) -> int:
        """The number of sequences that a row is decoded into."""
        if self.method == "greedy":
            return 1
        return self.num_decodes or {"beam": 4, "sample": 1, "rank": 1}[self.method]

    @property
    def returned(self) -> int:
        """The number of these sequences that are returned."""
        return self.decodes if self.return_all_decodes else 1

    @property
    def ranked(self) -> int:
        """The number of sequences that a search gives, from which the returned ones are chosen."""
        return self.decodes if self.ranked_by == CONSENSUS else self.returned

    def answers(self) -> list[tuple[str, str]]:
        """The allowed answers, each with its place for messages. Raises UserError for a file that is no text or empty,
        and where no answers are named."""
        if self.allowed is None:
            raise UserError(
                f"DecodingConfig.method is {self.method!r}: name the answers, one on each line: ALLOWED=file."
            )
        if not isinstance(self.allowed, str):
            return [(f"Answer {number} of the allowed ones", answer) for number, answer in enumerate(self.allowed, 1)]
        try:
            # in text, every kind of line end is read as this one
            lines = Path(self.allowed).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"ALLOWED={self.allowed} cannot be read as text: {error}.") from None
        if not any(lines):
            raise UserError(f"ALLOWED={self.allowed} is empty. Expected an answer on each line.")
        return [(f"{self.allowed}:{number}", line) for number, line in enumerate(lines, 1) if line]

    def _digest_of_answers(self) -> str:
        """The first digits of the SHA-256 of the allowed answers, one on each line."""
        return _digest("\n".join(answer for _, answer in self.answers()))

    def _short_pattern(self) -> str:
        """The pattern; of a long one the beginning, and the first digits of its SHA-256."""
        assert self.pattern is not None
        is_short = len(self.pattern) <= _LONGEST_SHOWN
        return self.pattern if is_short else f"{self.pattern[:_LONGEST_SHOWN]}… {_digest(self.pattern)}"

    def settings(self) -> dict[str, Any]:
        """The settings that decide the predictions, as JSON: the method and the options that it reads."""
        names = [name for name, methods in _READ_BY.items() if self.method in methods and name != "pattern"]
        values = {name: getattr(self, name) for name in ("method", "max_decode_length", *names)}
        values |= {"num_decodes": self.decodes} if "num_decodes" in names else {}
        # left out where there are none, as in records from before there were such options
        values |= {} if self.extra_length is None else {"extra_length": self.extra_length}
        values |= {} if self.pattern is None else {"pattern": self._short_pattern()}
        return values | ({} if self.allowed is None else {"allowed": self._digest_of_answers()})

    def _check(self, name: str, is_good: bool, why: str) -> None:
        if not is_good:
            raise UserError(f"DecodingConfig.{name} is {getattr(self, name)!r}: {why}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()[:12]
