"""What training refuses of a task, its check refuses too: both ask the same functions."""

import ast
import inspect
import os
import sys
import textwrap
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import seqio
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.base.errors import UserError
from t5xpg.check.data_checks import data_findings
from t5xpg.data.batch import ENC_DEC, LM, MASKED_LM, PREFIX_LM, layout_of
from t5xpg.data.objectives import (
    KINDS,
    IidDenoising,
    LanguageModel,
    MaskedLM,
    NextLine,
    Objective,
    Passkey,
    SpanCorruption,
)
from t5xpg.data.objectives.objective import sentinels_problem
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream import length_fit, worker
from t5xpg.data.stream.client import TaskDescription
from t5xpg.data.stream.length_fit import LengthFit
from t5xpg.data.tasks.steps import output_features
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.text.export import export_dataset
from t5xpg.data.vocab.making import copy_vocabulary
from t5xpg.data.vocab.seqio_vocabularies import to_seqio
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.refusals import assert_named
from tests.small_tokenizers import byte_level, word_pieces
from tests.workplace import sentences

BOTH = {"inputs": 64, "targets": 64}
WORDS = SpanCorruption(whole_words=True)
# Each breaks one thing: what the refusal names, the task, and what differs from 64 inputs and targets of an encoder and
# a decoder. Vocabularies: "early" has tokens behind its sentinels, "words" is of BERT's kind.
BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "last ids": ("mixed_span_corruption_mixed_early", {}),
    "WHOLE_WORDS": ("mixed_span_corruption_mixed_words", {"objective": WORDS}),
    "sentinels for": ("mixed_iid_denoising", {"task_feature_lengths": {"inputs": 900, "targets": 900}}),
    "too short": ("mixed_span_corruption", {"task_feature_lengths": {"inputs": 64, "targets": 4}}),
    "no room": ("mixed_passkey", {"task_feature_lengths": {"inputs": 20, "targets": 20}}),
    "'inputs': 64, 'targets': 64": ("mixed_mlm", {"task_feature_lengths": {"inputs": 64, "targets": 32}}),
    "has 'inputs' and": ("mixed_span_corruption", {"task_feature_lengths": {"targets": 64}, "feature_converter": LM}),
    "no feature chosen": ("mixed_span_corruption", {"feature_converter": MASKED_LM}),
    "Did you mean train": ("mixed_span_corruption", {"split": "trian"}),
    "objective": ("mixed_prefix_lm", {"objective": SpanCorruption()}),
    # of tasks that users register
    "NORMALIZATION=identity": ("users_next_line", {}),
    "each digit": ("users_passkey", {}),
    "no [CLS] and no [MASK]": ("users_mlm", {}),
}
TASKS = [f"mixed_{name}" for name in (
    "span_corruption", "span_corruption_mixed_early", "span_corruption_mixed_words", "span_corruption_byt5", "lm",
    "mlm", "prefix_lm", "iid_denoising", "passkey", "next_line", "ul2", "ul2_s",
)]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("refusals")
    quiet: Any = {"data_dir": folder / "data", "log": lambda line: None}
    (folder / "train.txt").write_text(sentences(30, 1))
    export_dataset("mixed", files={"train": [folder / "train.txt"]}, **quiet)
    early = byte_level(folder / "early", special=("<pad>", "</s>", "<extra_id_0>", "<extra_id_1>"))
    copy_vocabulary("mixed", early, name="early", extra_ids=0, **quiet)
    copy_vocabulary("mixed", word_pieces(folder / "words"), name="words", eos_token="bad", **quiet)
    environment = {"T5XPG_DATA_DIR": str(folder / "data"), "T5XPG_CACHE_DIR": str(folder / "cache")}
    with mock.patch.dict(os.environ, environment):
        register_tasks(folder / "data")
        pieces = Vocabulary("huggingface", 100, "seqio", str(early), unk_id=None)
        source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, splits=["train"])
        for name, objective in {"next_line": NextLine(), "passkey": Passkey(), "mlm": MaskedLM()}.items():
            features = output_features(objective, to_seqio(pieces))
            seqio.TaskRegistry.add(f"users_{name}", source, features, objective.steps())
        yield
    for name in ("next_line", "passkey", "mlm"):
        seqio.TaskRegistry.remove(f"users_{name}")


def stream(task: str, **changes: Any) -> DatasetConfig:
    modules = {"module_import": ("string",)} if task.startswith("users_") else {}
    usual = {"task_feature_lengths": BOTH, "feature_converter": ENC_DEC, "use_cached": False, "num_epochs": 1}
    return DatasetConfig(task, **{**usual, **modules, **changes})


def trained(dataset: DatasetConfig) -> str:
    """What the data process refuses when a training opens the stream; "" for nothing."""
    try:
        worker._find_provider(dataset.to_json())
    except UserError as error:
        return str(error)
    return ""


def checked(dataset: DatasetConfig) -> str:
    """What `make check` refuses."""
    service: Any = SimpleNamespace(describe=lambda config: worker._find_provider(config.to_json()))
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=5000))
    experiment: Any = SimpleNamespace(
        needs=(), eval_dataset=None, train_dataset=dataset, infer_eval_period=None, model=model
    )
    found = data_findings(dataset, experiment, (lambda: service) if dataset.module_import else None)
    return "\n".join(finding.text for finding in found if finding.problem)


def test_every_refusal_of_training_is_one_of_the_check() -> None:
    """All lines of the package that refuse an objective are reached from both sides, with the same words."""
    methods = ("problems", "vocabulary_problem", "targets_problem")
    functions = [vars(kind)[name] for kind in (Objective, *KINDS.values()) for name in methods if name in vars(kind)]
    functions.append(sentinels_problem)
    refusing = {
        (function.__qualname__, function.__code__.co_firstlineno + node.lineno - 1)
        for function in functions
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
        if (isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | ast.Name))
        or (isinstance(node, ast.Expr) and ".append" in ast.unparse(node))
    }
    reached: dict[Any, set[tuple[str, int]]] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in [function.__code__ for function in functions]:
            return None
        reached[side].add((frame.f_code.co_qualname, frame.f_lineno))
        return trace

    for side in (trained, checked):
        reached[side] = set()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for named, (task, changes) in BROKEN.items():
                assert_named(side(stream(task, **changes)), [named])
        finally:
            sys.settrace(before)
        assert refusing - reached[side] == set(), side
    assert len(refusing) == 12


@settings(max_examples=150, deadline=None)
@given(
    task=st.sampled_from(TASKS),
    sizes=st.tuples(st.sampled_from([8, 33, 64, 128, 900]), st.sampled_from([4, 20, 64, 128, 900])),
    objective=st.none()
    | st.sampled_from([SpanCorruption(), SpanCorruption(0.4, 1.0), WORDS, IidDenoising(), LanguageModel(), NextLine()]),
    converter=st.sampled_from([ENC_DEC, LM, PREFIX_LM, MASKED_LM]),
    split=st.sampled_from(["train", "train", "train", "tests"]),
)
def test_the_check_refuses_what_training_refuses(
    task: str, sizes: tuple[int, int], objective: Objective | None, converter: str, split: str
) -> None:
    names = layout_of(converter).task_features
    sizes_of = dict(zip(names, sizes[-len(names) :], strict=True))
    if converter == MASKED_LM:  # what an experiment refuses before
        sizes_of["targets"] = sizes_of["inputs"]
    dataset = stream(task, task_feature_lengths=sizes_of, objective=objective, feature_converter=converter, split=split)
    assert bool(trained(dataset)) == bool(checked(dataset)), (trained(dataset), checked(dataset))


class Service:
    """The data process's answers, in this one."""

    def describe(self, dataset: DatasetConfig) -> TaskDescription:
        return worker.Calls.describe(object.__new__(worker.Calls), dataset.to_json())

    def fits(self, dataset: DatasetConfig) -> list[LengthFit]:
        provider = worker._find_provider(dataset.to_json())[1]
        return length_fit.measure(provider, dataset)


def test_a_mixture_that_is_not_cached_yet_says_what_is_cut() -> None:
    """As training prints it: of every task, and refused where it is too much."""
    feature = seqio.Feature(seqio.ByteVocabulary())
    names = [f"users_{length}" for length in (9, 30)]
    for name in names:
        text = "x" * int(name.partition("_")[2])
        source = seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None, text=text: tf.data.Dataset.from_tensors(
                {"inputs": text, "targets": text}
            ).repeat(3),
            splits=["train"],
        )
        made = [seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(), seqio.preprocessors.append_eos]
        seqio.TaskRegistry.add(name, source, {"inputs": feature, "targets": feature}, made)
    seqio.MixtureRegistry.add("users_mixture", names, default_rate=1.0)
    dataset = stream("users_mixture", use_cached=True, task_feature_lengths={"inputs": 16, "targets": 64})
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=5000))
    given = {"infer_eval_period": None, "train_dataset": dataset, "eval_dataset": None, "model": model, "needs": ()}
    experiment: Any = SimpleNamespace(max_cut_share=0.2, **given)
    service: Any = Service()
    found = list(data_findings(dataset, experiment, lambda: service))
    try:
        assert_named(
            "\n".join(str(one) for one in found), ["users_9, train", "users_30, train", "inputs 100.0% cut at 16"]
        )
        assert [one.text for one in found if one.problem and "users_30" in one.text and "MAX_CUT_SHARE" in one.text]
        assert not [one for one in found if one.problem and "users_9" in one.text]
    finally:
        seqio.MixtureRegistry.remove("users_mixture")
        for name in names:
            seqio.TaskRegistry.remove(name)
