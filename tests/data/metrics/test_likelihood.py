from __future__ import annotations

import inspect
import math
import subprocess
import sys

import numpy as np
import pytest

from t5xpg.data import metrics
from t5xpg.data.metrics import perplexity


def test_sums_are_divided_by_bytes_and_words() -> None:
    found = perplexity(["ab c", "é"], np.array([-2.0, -4.0], np.float32))  # 6 bytes, 3 words
    assert found == pytest.approx(
        {
            "nats_per_byte": 1.0,
            "bits_per_byte": 1 / math.log(2),
            "byte_perplexity": math.e,
            "word_perplexity": math.exp(2.0),
        }
    )


def test_a_uniform_model_of_bytes_has_their_number_for_its_perplexity() -> None:
    texts = ["some text", "and more of it"]
    scores = [-len(text) * math.log(256) for text in texts]
    found = perplexity(texts, scores)
    assert found["byte_perplexity"] == pytest.approx(256)
    assert found["bits_per_byte"] == pytest.approx(8)


def test_what_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="The targets are empty"):
        perplexity(["", ""], [-1.0, -1.0])
    with pytest.raises(ValueError, match="There are no examples"):
        perplexity([], [])
    found = perplexity(["x"], [-1e6])
    assert found["byte_perplexity"] == found["word_perplexity"] == math.inf
    assert perplexity([" "], [-1.0])["word_perplexity"] == math.inf


def test_signatures_are_those_that_seqio_tells_metrics_by() -> None:
    functions = {name for name, _ in inspect.getmembers(metrics, inspect.isfunction) if not name.startswith("_")}
    names = functions - {"check_pairs", "references_of", "mean_of_best"}
    assert len(names) == 13
    for name in names:
        parameters = inspect.signature(getattr(metrics, name)).parameters.values()
        positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        assert positional == ["targets", "scores" if name == "perplexity" else "predictions"], name
        assert all(each.default is not each.empty for each in parameters if each.kind is each.KEYWORD_ONLY), name


@pytest.mark.process
def test_naming_the_metrics_of_a_task_loads_no_library() -> None:
    heavy = {"numpy", "sklearn", "sacrebleu", "rouge_score", "nltk", "seqio", "tensorflow", "jax", "editdistance"}
    program = f"import sys, t5xpg.data.metrics; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
