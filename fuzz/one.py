"""One target under atheris: `python -m fuzz.one NAME [options of libFuzzer] [corpus]`."""

import hashlib
import importlib
import sys
from pathlib import Path


def main() -> None:
    """Never returns: the fuzzer ends the process."""
    import atheris

    name = sys.argv.pop(1)
    # What is not measured: jax and the like, which `config` brings with it and which no input of these targets reaches.
    with atheris.instrument_imports(include=["t5xpg", "gin"]):
        targets = importlib.import_module("fuzz.targets")
        if name == "overrides":
            importlib.import_module("t5xpg.experiment.config")
        if name == "prompts":
            importlib.import_module("t5xpg.evaluate.infer")
    corpus = Path(sys.argv[-1])
    for seed in targets.SEEDS[name]:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    atheris.Setup(sys.argv, targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
