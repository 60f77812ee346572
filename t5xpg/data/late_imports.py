"""Libraries that are imported when they are first used, and not because TensorFlow and t5 import them.

TensorFlow loads Keras, which loads scikit-learn and Matplotlib where they are there; t5's metrics load scikit-learn,
NLTK and more. A stream of batches uses none of it, and it is almost half of the time until the first batch.

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
from typing import Any

# What t5 computes metrics with: modules, and those of whose functions it uses some.
_OF_METRICS = ("sacrebleu", "scipy", "scipy.stats", "sklearn", "sklearn.metrics", "rouge_score.rouge_scorer")


class LateModule(types.ModuleType):
    """Stands for a module that is imported when one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import itself
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


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
def late_metrics() -> Iterator[None]:
    """A block that imports t5, and the libraries of its metrics only if one is computed."""
    modules = {name: LateFunctions(name) for name in _OF_METRICS}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], child, module)
    with _in_place(modules):
        yield


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
