"""t5xpg: reproducible experiments with T5-family models.

```python
import t5xpg

model = t5xpg.load("byt5_tiny_demo")
model.generate(["The <extra_id_0> ruined my sleep"], num_beams=4)
run = t5xpg.experiment("byt5_tiny_demo").override(TRAIN_STEPS=200).train("mine")
run.metrics
```
"""

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t5xpg.api import Experiment, Model, Run, experiment, load
else:
    from t5xpg import experiment

__version__ = "0.1.0"
__all__ = ["Experiment", "Model", "Run", "experiment", "load"]


def __getattr__(name: str) -> Any:
    """What `t5xpg.api` has, imported when it is first asked for: JAX takes seconds, and most commands do without."""
    if name not in __all__:
        raise AttributeError(f"module 't5xpg' has no attribute {name!r}")
    from t5xpg import api

    return getattr(api, name)


class _ExperimentRoom(types.ModuleType):
    """The package `t5xpg.experiment`, which is a function of the public interface, too: `t5xpg.api.experiment`."""

    def __call__(self, name: str) -> Any:
        from t5xpg import api

        return api.experiment(name)


if not TYPE_CHECKING:
    experiment.__class__ = _ExperimentRoom
