"""Imports TensorFlow, SeqIO and t5 without three things that they load and a stream of batches does not use.

TensorFlow and TensorFlow Text load Keras; t5 loads scikit-learn, SciPy, NLTK and sacrebleu for its metrics; SeqIO loads
TensorFlow Text, 120 MB that bytes do not need. Left out, the import takes a third less processor time. What is imported
later is the real thing; what has kept a stand-in gets the real thing by it.
"""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from t5xpg.base.errors import UserError

_KERAS_OF_TEXT = "tensorflow_text.python.keras"
_OF_METRICS = ("sacrebleu", "scipy", "scipy.stats", "sklearn", "sklearn.metrics", "rouge_score.rouge_scorer")


class LateModule(types.ModuleType):
    """Stands for a module that is imported when one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import itself
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


class LateFunctions(LateModule):
    """Stands for a module of functions, imported when one is called: t5 looks for some of them when it is imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__
        return lambda *arguments, **options: getattr(importlib.import_module(module), name)(*arguments, **options)


class LateText(LateModule):
    """Stands for TensorFlow Text, which vocabularies of pieces use, and bytes do not."""

    def __getattr__(self, name: str) -> Any:
        with _in_place({_KERAS_OF_TEXT: LateModule(_KERAS_OF_TEXT)}):
            return super().__getattr__(name)


def import_libraries() -> None:
    """Import TensorFlow, SeqIO and t5 so. Raises UserError without t5, which pip leaves out (pyproject.toml)."""
    if importlib.util.find_spec("t5") is None:
        raise UserError(
            "The package t5 is not installed: pip would install with it what writes over seqio. Type: "
            "pip install --no-deps t5==0.9.4"
        )
    metrics = {name: LateFunctions(name) for name in _OF_METRICS}
    for parent, child in (("scipy", "stats"), ("sklearn", "metrics")):
        setattr(metrics[parent], child, metrics[f"{parent}.{child}"])
    # None: TensorFlow does without the optimisers of Keras where importing them fails
    with _in_place({**metrics, "tensorflow_text": LateText("tensorflow_text"), "keras.src.optimizers": None}):
        import t5.data  # noqa: F401


@contextlib.contextmanager
def _in_place(modules: Mapping[str, types.ModuleType | None]) -> Iterator[None]:
    """Put modules where an import finds them; those that are there already stay. None: importing it fails."""
    absent = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in absent.items():
            if sys.modules.get(name, module) is module:
                sys.modules.pop(name, None)
