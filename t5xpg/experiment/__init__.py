"""An experiment: read from gin, prepared, identified, assembled on devices.

The package is a function, too, as `t5xpg.experiment` is one of the public interface: `t5xpg.api.experiment`.
"""

import sys
import types
from typing import Any


class _Room(types.ModuleType):
    def __call__(self, name: str) -> Any:
        import t5xpg

        return t5xpg.__getattr__("experiment")(name)


sys.modules[__name__].__class__ = _Room
