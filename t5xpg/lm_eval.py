"""Trained models in EleutherAI's lm-evaluation-harness, under the name `t5xpg`.

    python -m t5xpg.lm_eval run --model t5xpg --model_args run=byt5_tiny,scoring=prefix --tasks blimp

is the harness' own command line. In Python, `import t5xpg.lm_eval` before `lm_eval.simple_evaluate(model="t5xpg", …)`.
Importing this module without the harness raises UserError.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from t5xpg import api
from t5xpg.base.errors import UserError
from t5xpg.evaluate.likelihood import PLAIN, LikelihoodScorer, Score
from t5xpg.evaluate.trained_model import Step

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
except ModuleNotFoundError as error:
    message = f"lm-evaluation-harness is not installed ({error}): pip install lm-eval"
    raise SystemExit(message) if __name__ == "__main__" else UserError(message) from error

_SAMPLING = {"temperature": "temperature", "top_k": "topk", "top_p": "topp"}  # names here
_BATCH_SIZE = 32


@register_model("t5xpg")
class T5xpgLM(LM):
    """A trained model with the interface of the harness.

    run, step: as in `t5xpg.load`. scoring: see `t5xpg.evaluate.likelihood`. batch_size: log-likelihoods at a time;
    answers are made in batches of the run's validation. The harness' other options are ignored: JAX chooses the
    devices. Raises UserError if the model or the scoring does not exist.
    """

    def __init__(
        self,
        run: str,
        scoring: str = PLAIN,
        step: Step = None,
        batch_size: int | str = _BATCH_SIZE,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self._model = api.load(str(run), step=step)
        self._lengths = self._model.experiment.lengths
        self._scorer = LikelihoodScorer(
            self._model.experiment.model,
            self._model.params,
            self._model.vocabulary,
            self._model.experiment.eval_dataset.converter,
            scoring,
            int(batch_size) if str(batch_size).isdigit() else _BATCH_SIZE,  # "auto" is none
        )

    def loglikelihood(self, requests: Sequence[Instance], **_: Any) -> list[Score]:
        """For each (context, continuation): its log-likelihood in nats, and True if greedy decoding gives it."""
        return list(self._scorer.scores([request.args for request in requests]))

    def loglikelihood_rolling(self, requests: Sequence[Instance], **_: Any) -> list[float]:
        """The log-likelihood of each (text,), read in windows as long as in training. Raises UserError for a model that
        is not a language model."""
        return self._scorer.rolling([request.args[0] for request in requests], self._lengths["targets"])

    def generate_until(self, requests: Sequence[Instance], **_: Any) -> list[str]:
        """The answer to each (context, options), cut before the first of the texts in `until`. Raises UserError for
        invalid options."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        answers_by_number: dict[int, str] = {}
        for numbers in groups.values():
            options = normalize_gen_kwargs(requests[numbers[0]].args[1])
            answers = self._model.generate([requests[number].args[0] for number in numbers], **_decoding(options))
            cut_answers = [postprocess_generated_text(answer, options["until"], None) for answer in answers]
            answers_by_number |= dict(zip(numbers, cut_answers, strict=True))
        return [answers_by_number[number] for number in range(len(requests))]


def _decoding(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `api.Model.generate` for normalised options of the harness. Greedy decoding and beam search read
    only the length and `num_beams`."""
    others = {name: value for name, value in options.items() if name not in ("until", "max_gen_toks", "do_sample")}
    if unknown := sorted(set(others) - {*_SAMPLING, "num_beams"}):
        raise UserError(f"No model here reads generation_kwargs named {', '.join(unknown)}.")
    beams = {"num_beams": others.pop("num_beams")} if "num_beams" in others else {}
    if options["do_sample"] and beams.get("num_beams", 1) != 1:
        raise UserError("num_beams is of beam search: leave it out with do_sample.")
    sampling = {_SAMPLING[name]: value for name, value in others.items()}
    method = {"method": "sample", **sampling} if options["do_sample"] else beams
    return {"max_decode_length": options["max_gen_toks"], **method}


def main() -> None:
    """The harness' command line, with this model."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
