"""XLA's flags for CPUs: the step of the small job with this machine's row of `CPU_FLAGS`, without flags, and with one
after the other. The row of another kind of processor comes from here."""

import functools

from benchmarks.harness import Row, alternate_reports, report_of
from benchmarks.jobs import JOBS
from benchmarks.step import DTYPES, described, fixed
from t5xpg.base.xla_flags import CPU_FLAGS

STEPS, REPEATS = 8, 3
OWN, NONE = "this machine's", "none"


def rows(repeats: int | None) -> list[Row]:
    """Milliseconds a step of the small job in both dtypes."""
    all_flags = CPU_FLAGS[0][1]
    # one that is set keeps the others away
    settings = {OWN: "", NONE: all_flags[0].replace("true", "false")}
    settings |= {
        " and ".join(name(flag) for flag in all_flags[:count]): " ".join(all_flags[:count])
        for count in range(1, len(all_flags) + 1)
    }
    made = []
    for dtype in DTYPES:
        arguments = ["-m", "benchmarks.ours", "step", "--repeats", str(STEPS), "--dtype", dtype]
        contestants = {
            each: functools.partial(report_of, arguments, environment={"XLA_FLAGS": flags})
            for each, flags in settings.items()
        }
        what = f"flags of XLA, training step in {dtype}, {described(JOBS['small'])}"
        found, _ = alternate_reports(contestants, "ms", repeats or REPEATS)
        made.append(Row(name="flags", what=what, unit="ms", fixed=fixed(JOBS["small"]), found=found))
    return made


def name(flag: str) -> str:
    """A flag without what the names of all begin with."""
    return flag.removeprefix("--xla_cpu_").removeprefix("experimental_")
