"""Libraries that are imported when they are first used, and not because TensorFlow and t5 import them.

TensorFlow loads Keras, which loads scikit-learn and Matplotlib where they are there; t5's metrics load scikit-learn,
NLTK and more; SeqIO loads PyGlove for one question. A stream of batches uses none of it, nor TensorFlow Text where its
ids are bytes, and it is more than half of the time until the first batch.

While such a library is imported, stand-ins take the place of what it imports. They are taken away again: what is
imported later, by a user's module for instance, is the real thing. What has kept a stand-in gets the real thing through
it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

# What t5 computes metrics with: modules, and those of whose functions it uses some.
_OF_METRICS = ("sacrebleu", "scipy", "scipy.stats", "sklearn", "sklearn.metrics", "rouge_score.rouge_scorer")


class LateModule(types.ModuleType):
    """Stands for a module that is imported, inside of `around`, when one of its names is asked for."""

    def __init__(self, name: str, around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> None:
        super().__init__(name)
        self._around = around

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import itself
            raise AttributeError(name)
        with self._around():
            module = importlib.import_module(self.__name__)
        return getattr(module, name)


class LateFunctions(LateModule):
    """Stands for a module of functions, imported when one is called: t5 looks for some of them when it is imported."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def late(*arguments: Any, **keywords: Any) -> Any:
            return getattr(importlib.import_module(self.__name__), name)(*arguments, **keywords)

        late.__name__ = late.__qualname__ = name
        late.__module__ = self.__name__
        return late


class _OfPyGlove(type):
    """A class of which something can be an instance only once PyGlove itself has been imported."""

    def __instancecheck__(cls, value: object) -> bool:
        real = sys.modules.get("pyglove")
        return real is not None and isinstance(value, real.hyper.HyperPrimitive)


class _HyperPrimitive(metaclass=_OfPyGlove):
    """SeqIO asks of each rate of a mixture whether it is one, and nothing else of PyGlove."""


@contextlib.contextmanager
def late_keras() -> Iterator[None]:
    """A block that imports TensorFlow, and Keras only if somebody uses `tf.keras` or imports it.

    TensorFlow asks where Keras lies, and then imports its optimisers for the sake of saved models, or does without.
    TensorFlow Text has layers of Keras in a module of their own.
    """
    spec = importlib.machinery.PathFinder.find_spec("keras")
    if spec is None:
        yield
        return
    keras = types.ModuleType("keras")
    keras.__spec__ = spec
    keras.__path__ = list(spec.submodule_search_locations or [])
    layers = LateModule("tensorflow_text.python.keras")
    with _in_place({"keras": keras, "keras.src": None, layers.__name__: layers}):
        yield


@contextlib.contextmanager
def late_seqio() -> Iterator[None]:
    """A block that imports SeqIO: TensorFlow Text is loaded when a vocabulary of pieces is used, PyGlove never."""
    pyglove = LateModule("pyglove")
    pyglove.hyper = types.SimpleNamespace(HyperPrimitive=_HyperPrimitive)  # type: ignore[attr-defined]
    text = LateModule("tensorflow_text", late_keras)
    with _in_place({"pyglove": pyglove, text.__name__: text}):
        yield


@contextlib.contextmanager
def late_metrics() -> Iterator[None]:
    """A block that imports t5, and the libraries of its metrics only if one is computed."""
    modules = {name: LateFunctions(name) for name in _OF_METRICS}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    with _in_place(modules):
        yield


def import_libraries() -> None:
    """Import TensorFlow, SeqIO and t5, without what they would load besides."""
    with late_keras():
        import tensorflow  # noqa: F401
    with late_seqio(), late_metrics():
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
            if name in sys.modules and sys.modules[name] is module:
                del sys.modules[name]
