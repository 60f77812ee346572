"""The model class of lm-evaluation-harness, where the harness is installed."""

import sys
from pathlib import Path
from typing import Any

import pytest

import t5xpg
from t5xpg.base.errors import UserError
from tests.small_models import FAMILIES

FOLDER = str(FAMILIES / "byt5")


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def requests(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


def test_what_to_type_without_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.api.instance", None)
    monkeypatch.delitem(sys.modules, "t5xpg.lm_eval", raising=False)
    with pytest.raises(UserError, match=r"pip install 't5xpg\[lm-eval\]'"):
        import t5xpg.lm_eval  # noqa: F401


def test_the_harness_gets_what_the_model_says() -> None:
    lm_eval = pytest.importorskip("lm_eval")
    import t5xpg.lm_eval

    with pytest.raises(UserError, match="There is no scoring"):
        lm_eval.api.registry.get_model("t5xpg").create_from_arg_string(f"run={FOLDER},scoring=none")
    harness = t5xpg.lm_eval.T5xpgLM(FOLDER, batch_size="auto")
    pairs = [("the owl", "s"), ("an", "owl")]
    scores = harness.loglikelihood(requests("loglikelihood", *pairs))
    # by a language of bytes, whose end is counted in `loss` and not here
    model = t5xpg.load(FOLDER)
    for (context, continuation), (found, _) in zip(pairs, scores, strict=True):
        whole = model.loss([context], [continuation])[0] * (len(continuation) + 1)
        assert 0 < -found < whole
    with pytest.raises(UserError, match="language models"):
        harness.loglikelihood_rolling(requests("loglikelihood_rolling", ("a",)))

    options: list[dict[str, Any]] = [{"until": [], "max_gen_toks": 8}, {"until": ["\n"], "max_gen_toks": 4}]
    said = harness.generate_until(requests("generate_until", ("a", options[0]), ("b", options[1]), ("c", options[0])))
    assert said[0::2] == model.generate(["a", "c"], max_decode_length=8)
    assert said[1] == model.generate(["b"], max_decode_length=4)[0].split("\n")[0]
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 5, "max_gen_toks": 4}
    (drawn,) = harness.generate_until(requests("generate_until", ("a", sampled)))
    assert [drawn] == model.generate(["a"], method="sample", temperature=0.7, topk=5, max_decode_length=4)
    with pytest.raises(UserError, match="repetition_penalty"):
        harness.generate_until(requests("generate_until", ("a", {"repetition_penalty": 2.0})))
