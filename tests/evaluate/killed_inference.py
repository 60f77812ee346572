"""Run by test_continuing.py: the program, killed by SIGKILL as it is about to predict from a certain row on.

Usage: killed_inference.py <row> <arguments of t5xpg>
"""

import os
import signal
import sys

from t5xpg.base.xla_flags import set_xla_flags

if __name__ == "__main__":
    set_xla_flags()  # as the program does, before jax is imported: they decide the last bits
    import numpy as np

    from t5xpg import cli
    from t5xpg.evaluate.infer import Answer, Predictor

    last = int(sys.argv[1])
    whole = Predictor.answers

    def answers(self: Predictor, tokens: np.ndarray, first_row: int = 0) -> list[Answer]:
        if first_row >= last:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, tokens, first_row)

    Predictor.answers = answers  # type: ignore[method-assign]
    sys.exit(cli.main(sys.argv[2:]))
