"""An experiment: read from gin, prepared, identified, assembled on devices.

The package can also be called: `t5xpg.experiment(name)` is `t5xpg.api.experiment`, a function of the public interface.
"""

import sys
import types
from typing import Any


class _CallableModule(types.ModuleType):
    def __call__(self, name: str) -> Any:
        import t5xpg

        return t5xpg.__getattr__("experiment")(name)


sys.modules[__name__].__class__ = _CallableModule
