"""Metrics by the names of METRICS: functions of `t5xpg.data.metrics`, or "module.function" of others."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from t5xpg.base.errors import UserError, nearest
from t5xpg.data import metrics

_ARGUMENTS = (["targets", "predictions"], ["targets", "scores"])


def metric_of(name: str) -> Callable[..., Any]:
    """The metric function of a name, in SeqIO's signature. Raises UserError for an unknown name."""
    check_metric_name(name)
    module, _, function = name.rpartition(".")
    try:
        metric: Callable[..., Any] = getattr(importlib.import_module(module) if module else metrics, function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(f"METRICS names {name}, which Python does not find: {error}.") from error
    if not _is_metric(metric):
        raise UserError(f"METRICS names {name}: expected a function of (targets, predictions) or (targets, scores).")
    return metric


def check_metric_name(name: str) -> None:
    """Raise UserError, with the nearest names, for a name without a module that is not of a metric."""
    functions = inspect.getmembers(metrics, inspect.isfunction)
    known = {metric for metric, function in functions if not metric.startswith("_") and _is_metric(function)}
    if "." not in name and name not in known:
        raise UserError(f"METRICS names {name}, which is no function of {metrics.__name__}.{nearest(name, known)}")


def _is_metric(function: Any) -> bool:
    try:
        return list(inspect.signature(function).parameters)[:2] in _ARGUMENTS
    except (TypeError, ValueError):  # no function, or one that does not say its parameters
        return False
