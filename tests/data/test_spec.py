"""The description of a stream: what can be said, and what is refused (more of it: tests/cli/test_bad_input.py)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5xpg.data.objectives import IidDenoising, LanguageModel, MaskedLM, PrefixLM, SpanCorruption
from t5xpg.data.spec import DatasetConfig
from tests.refusals import refused

LENGTHS = {"inputs": 64, "targets": 32}


def config(**values: Any) -> DatasetConfig:
    return DatasetConfig(**{"mixture_or_task_name": "a_task", "task_feature_lengths": LENGTHS, **values})


@given(
    st.builds(
        DatasetConfig,
        mixture_or_task_name=st.from_regex(r"[A-Za-z][\w:.]{0,20}", fullmatch=True),
        task_feature_lengths=st.dictionaries(st.sampled_from(["inputs", "targets"]), st.integers(1, 1 << 15)),
        split=st.sampled_from(["train", "a split"]),
        pack=st.booleans(),
        seed=st.integers(0, 2**31 - 1),
        num_epochs=st.none() | st.integers(1, 2**63 - 1),
        max_batches=st.none() | st.integers(1, 2**63 - 1),
        objective=st.sampled_from([None, IidDenoising(0.3), PrefixLM(0.25), LanguageModel(), MaskedLM(0.2, 0.7, 0.1)])
        | st.builds(
            lambda share, mean, words: SpanCorruption(share * mean / (mean + 1), mean, words),
            st.floats(0.01, 0.99),
            st.floats(1.0, 1e6) | st.integers(1, 10**6),
            st.booleans(),
        ),
        module_import=st.lists(st.sampled_from(["my_tasks", "a.b_c"])),
        metrics=st.lists(st.sampled_from(["bleu", "a.b_c"])),
    )
)
def test_json_gives_the_same_config_back(given: DatasetConfig) -> None:
    assert DatasetConfig.from_json(json.loads(json.dumps(given.to_json()))) == given


def test_modules_are_names_or_one_text() -> None:
    assert config(module_import="my_tasks, other.tasks").module_import == ("my_tasks", "other.tasks")
    assert config(module_import=["my_tasks"]).module_import == ("my_tasks",)
    assert config(metrics="bleu,my_module.my_metric").metrics == ("bleu", "my_module.my_metric")


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        (config, {"mixture_or_task_name": ""}, "mixture_or_task_name"),
        (config, {"mixture_or_task_name": "a\0b"}, r"'a\x00b'"),
        (config, {"split": "a/../../b"}, "split|'a/../../b'"),
        (config, {"task_feature_lengths": {"inputs": 64.0}}, "64.0|whole number"),
        (config, {"batch_size": "8"}, "batch_size|'8'|whole number"),
        (config, {"metrics": ("blue",)}, "METRICS|blue|Did you mean bleu"),
        (config, {"metrics": ("_match_and_f1",)}, "METRICS|_match_and_f1"),
        (config, {"metrics": ("mean_of_best",)}, "METRICS|mean_of_best"),
        (config, {"metrics": "a b/c"}, "METRICS|'a b/c'"),
        (config, {"num_epochs": 0}, "num_epochs is 0"),
        (config, {"objective": "span_corruption"}, "objective|'span_corruption'|SpanCorruption"),
        (SpanCorruption, (float("nan"), 3.0), "SpanCorruption.noise_density|nan"),
        (SpanCorruption, (0.1, 0.5), "SpanCorruption.mean_noise_span_length|0.5"),
        (SpanCorruption, (0.1, float("inf")), "SpanCorruption.mean_noise_span_length|inf"),
        (SpanCorruption, (0.5, 1.0, True), "0.5|mean_noise_span_length of 1.0|below 0.5"),
        (SpanCorruption, (0.6, 1.0), "noise_density is 0.6|below 0.5"),
        (SpanCorruption, (0.1, "3"), "SpanCorruption.mean_noise_span_length|'3'"),
        (IidDenoising, (0.0,), "IidDenoising.noise_density|0.0"),
        (PrefixLM, (0.6,), "PrefixLM.noise_density|0.6|at most 0.5"),
        (MaskedLM, (1.0,), "MaskedLM.noise_density|1.0"),
        (MaskedLM, (0.15, "all"), "MaskedLM.mask_share|'all'"),
        (MaskedLM, (0.15, 0.8, 0.3), "0.8|0.3|at most 1"),
    ],
)
def test_what_cannot_be_is_refused(kind: Any, values: Any, names: str) -> None:
    with refused(*names.split("|")):
        kind(**values) if isinstance(values, dict) else kind(*values)


def test_the_json_of_objectives_in_saved_positions_and_recordings() -> None:
    spans = {"kind": "span_corruption", "noise_density": 0.15, "mean_noise_span_length": 3.0, "whole_words": False}
    assert config(objective=SpanCorruption()).to_json()["objective"] == spans
    assert config(objective=PrefixLM()).to_json()["objective"] == {"kind": "prefix_lm", "noise_density": 0.5}
