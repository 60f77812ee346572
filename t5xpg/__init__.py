"""t5xpg: reproducible experiments with T5-family models.

```python
import t5xpg

model = t5xpg.load("demo")
model.generate(["The <extra_id_0> ruined my sleep"], num_beams=4)
run = t5xpg.Experiment("demo").override(TRAIN_STEPS=200).train("mine")
run.metrics
```
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t5xpg.api import Experiment, Model, Run, load

__version__ = "0.1.0"
__all__ = ["Experiment", "Model", "Run", "load"]


def __getattr__(name: str) -> Any:
    """Import a name of `t5xpg.api` when it is first used: JAX takes seconds to import, and most commands need none."""
    if name not in __all__:
        raise AttributeError(f"module 't5xpg' has no attribute {name!r}")
    from t5xpg import api

    return getattr(api, name)
