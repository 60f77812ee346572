"""The program, held once the checkpoint of a certain step is written, until it gets SIGCONT (`Workplace.start`).

Usage: python -m tests.train.held_training <step> <arguments of t5xpg>
"""

import os
import signal
import sys
import threading
from typing import Any

from t5xpg import __main__ as program
from t5xpg.base import malloc
from t5xpg.base.xla_flags import set_xla_flags

if __name__ == "__main__":
    os.environ["GLIBC_TUNABLES"] = malloc.TUNABLES  # or the program would start anew, without what is changed here
    set_xla_flags()  # as the program does, before jax is imported
    from t5xpg.run.checkpoint.checkpointer import Checkpointer

    held, released = int(sys.argv.pop(1)), threading.Event()
    signal.signal(signal.SIGCONT, lambda *_: released.set())
    whole = Checkpointer.save

    def save(self: Checkpointer, step: int, *arguments: Any, **options: Any) -> bool:
        saved = whole(self, step, *arguments, **options)
        if step == held:
            self.wait()
            released.wait()
        return saved

    Checkpointer.save = save  # type: ignore[method-assign]
    sys.exit(program.main())
