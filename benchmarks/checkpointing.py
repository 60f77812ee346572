"""How long training stands still for a checkpoint of a model of 250 million parameters.

The time counts the check that all parameters are finite, and `Checkpointer.save`, until the next update may take the
arrays. In the synchronous save, training also waits until all is written, hashed, and on the disk under its name.
"""

from typing import Any

from benchmarks.harness import Found, Goal, Row, report_of

PAUSE, WHOLE = "asynchronous", "synchronous"
WHILE, OTHERWISE = "while it is written", "otherwise"
SAVES = 3


def rows(repeats: int | None) -> list[Row]:
    """Seconds for which a save stops training; milliseconds of an update while a save is written, and otherwise."""
    report = report_of(["-m", "benchmarks.checkpointing_ours", "--saves", str(repeats or SAVES)])
    facts: dict[str, Any] = {name: report[name] for name in ("parameters", "bytes", "arrays", "check_seconds")}
    fixed = (
        f"T5 1.1 base, {report['parameters'] / 1e6:.0f}M parameters, Adafactor, {report['bytes'] / 1e9:.2f} GB in "
        f"{report['arrays']} arrays of random numbers; SHA-256 of every file; the update takes the saved arrays"
    )
    return [
        Row(
            name="checkpointing", what="training stands still for a checkpoint", unit="s", fixed=fixed, facts=facts,
            found=Found({PAUSE: tuple(report["pauses"]), WHOLE: tuple(report["whole"])}),
            goal=Goal(at_least=10.0, against=WHOLE),
        ),
        Row(
            name="checkpointing", what="a small update beside the writing", unit="ms",
            fixed=f"{fixed}; an update is a matrix product of {report['size']} and a new state",
            found=Found({WHILE: tuple(report["updates_while"]), OTHERWISE: tuple(report["updates"])}),
        ),
    ]  # fmt: skip
