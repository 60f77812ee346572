"""The whole of `train` (live data, metrics, records, checkpoints) against its compiled step alone."""

import statistics
import tempfile
from pathlib import Path

from benchmarks.harness import Found, Goal, Row, alternate, output_of, report_of
from t5xpg.run.records import read_jsonl

EXPERIMENT = "optimizers_tiny"
FIRST, LAST = 10, 50  # the steps between which the loop is timed; two checkpoints are saved on the way
BARE_STEPS = 20
OVERRIDES = (
    f"--gin_file=gin/optimizers/adamw.gin --gin.TRAIN_STEPS={LAST} --gin.WARMUP_STEPS=5 --gin.PACK=True "
    "--gin.STATS_PERIOD=10 --gin.CHECKPOINT_PERIOD=20 --gin.EVAL_PERIOD=1000000 --gin.EVAL_STEPS=1"
)
REPEATS = 2
LOOP, BARE = "train", "the step alone"


def rows(repeats: int | None) -> list[Row]:
    """Milliseconds a step, everything counted that is not evaluation; the share of time that waits for data."""
    waited: list[float] = []

    def loop() -> float:
        with tempfile.TemporaryDirectory() as folder:
            output_of(["-m", "t5xpg", "train", EXPERIMENT, f"--gin-overrides={OVERRIDES}", f"--run={folder}/run"])
            records = read_jsonl(Path(folder) / "run" / "timing.jsonl")
        timed = [record for record in records if FIRST < record["step"] <= LAST]
        waited.append(100 * statistics.fmean(record["waited_for_data"] for record in timed))
        times = {record["step"]: record["time"] for record in records}
        return 1000 * (times[LAST] - times[FIRST]) / (LAST - FIRST)

    def bare() -> float:
        return float(report_of(["-m", "benchmarks.ours", "bare", EXPERIMENT, str(BARE_STEPS), OVERRIDES])["ms"])

    found = alternate({LOOP: loop, BARE: bare}, repeats or REPEATS)
    fixed = (
        f"{EXPERIMENT}, packed, AdamW, float32, dropout 0; metrics of every step, a checkpoint every 20, "
        f"steps {FIRST} to {LAST} by the clock"
    )
    return [
        Row(
            name="loop", what="the loop against the bare step", unit="ms a step", fixed=fixed, found=found,
            goal=Goal(at_least=0.97, against=BARE),
        ),
        Row(
            name="loop", what="time that waits for data", unit="%", fixed=fixed, found=Found({LOOP: tuple(waited)}),
            goal=Goal(at_most=1.0),
        ),
    ]  # fmt: skip
