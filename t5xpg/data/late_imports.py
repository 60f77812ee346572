"""Imports of TensorFlow, SeqIO and t5 without packages that they load and a stream of batches does not use.

TensorFlow and TensorFlow Text load Keras, and TensorFlow its interface of version 1; t5 loads scikit-learn, SciPy, NLTK
and sacrebleu for its metrics; SeqIO loads JAX and Flax for its metrics, TensorFlow Text, which byte vocabularies do not
need, TensorFlow Datasets, and PyGlove, which searches mixture rates. Without them, the import takes 1.5 s in
place of 4.8 s, and the process 450 MB in place of 900 MB. A later import gets the real module; code that has kept a
stand-in reaches the real module through it.
"""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5xpg.base.errors import UserError

_KERAS_OF_TEXT = "tensorflow_text.python.keras"
_METRIC_LIBRARIES = ("sacrebleu", "scipy", "scipy.stats", "sklearn", "sklearn.metrics", "rouge_score.rouge_scorer")
_TENSORFLOW_PARTS = ("tensorflow._api.v2.compat.v1", "tensorflow._api.v2.compat.v2.compat.v1", "requests")
_JAX_USERS = ("clu", "clu.metrics", "seqio.metrics", "seqio.evaluation", "seqio.loggers")


class LateModule(types.ModuleType):
    """A stand-in for a module, which is imported at the first use of one of its names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up by the import itself
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


class LateFunctions(LateModule):
    """A stand-in for a module of functions, imported when one is called: t5 looks some of them up at its import."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__
        return lambda *arguments, **options: getattr(importlib.import_module(module), name)(*arguments, **options)


class LateText(LateModule):
    """A stand-in for TensorFlow Text, which subword vocabularies use and byte vocabularies do not."""

    def __getattr__(self, name: str) -> Any:
        with stand_ins({_KERAS_OF_TEXT: LateModule(_KERAS_OF_TEXT)}):
            return super().__getattr__(name)


def import_libraries() -> None:
    """Import TensorFlow, SeqIO and t5 with stand-ins. UserError without t5, which pip leaves out (pyproject.toml)."""
    if importlib.util.find_spec("t5") is None:
        raise UserError(
            "The package t5 is not installed: pip would install with it what writes over seqio. Type: "
            "pip install --no-deps t5==0.9.4"
        )
    late = {name: LateModule(name) for name in (*_TENSORFLOW_PARTS, "tensorflow_datasets", "pyglove", *_JAX_USERS)}
    late |= {name: LateFunctions(name) for name in _METRIC_LIBRARIES}
    late["tensorflow_text"] = LateText("tensorflow_text")
    for parent, child in (("scipy", "stats"), ("sklearn", "metrics"), ("clu", "metrics")):
        setattr(late[parent], child, late[f"{parent}.{child}"])
    # the names of these modules that SeqIO uses while it is imported
    datasets: Any = late["tensorflow_datasets"]
    datasets.Split, datasets.core = types.SimpleNamespace(TRAIN="train"), types.SimpleNamespace(DatasetBuilder=object)
    late["seqio.metrics"].MetricFnCallable = Callable[..., Mapping[str, Any]]  # type: ignore[attr-defined]
    late["seqio.evaluation"].Evaluator = None  # type: ignore[attr-defined]
    # None makes an import fail: TensorFlow does without Keras's optimisers and h5py, TensorFlow Lite without JAX
    with stand_ins({**late, "keras.src.optimizers": None, "h5py": None, "jax": None}):
        import t5.data  # noqa: F401
    import seqio

    del datasets.Split, datasets.core
    if seqio.Evaluator is None:
        del seqio.Evaluator, late["seqio.evaluation"].Evaluator
        seqio.__getattr__ = _late_export


def _late_export(name: str) -> Any:
    """A name that `seqio` exports from its modules evaluation and loggers, for an import without them."""
    if not name.startswith("_"):
        evaluation, loggers = (importlib.import_module(f"seqio.{module}") for module in ("evaluation", "loggers"))
        exported = {**vars(loggers), "loggers": loggers, "Evaluator": evaluation.Evaluator}
        if name in exported:
            return exported[name]
    raise AttributeError(f"module 'seqio' has no attribute {name!r}")


@contextlib.contextmanager
def stand_ins(modules: Mapping[str, types.ModuleType | None]) -> Iterator[None]:
    """Put modules into `sys.modules` for the block, unless they are there already. None: importing a module fails."""
    absent = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in absent.items():
            if sys.modules.get(name, module) is module:
                sys.modules.pop(name, None)
