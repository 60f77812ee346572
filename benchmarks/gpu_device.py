"""What a part of `make gpu` is given: the device, its time, what other parts have found.

`python -m benchmarks.gpu_device` prints what JAX's default device is; that takes a process of its own, as JAX takes the
memory of the device.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.harness import Found, NotMeasuredError, Row, report_of
from t5xpg.base.xla_flags import set_xla_flags

DTYPES = ("float32", "bfloat16")
SIZES = {"cpu": 2048, "gpu": 8192}  # of the matrices whose product is timed
SECONDS = 2.0


@dataclass(frozen=True)
class Conditions:
    """device: what `main` prints. small: sizes for a CPU, to try the parts. ends: when the part's time is over, by
    time.monotonic(). found: the rows measured so far, by name of the part.
    """

    device: Mapping[str, Any]
    small: bool
    ends: float
    found: Mapping[str, Sequence[Row]]

    @property
    def left(self) -> float:
        """Seconds that the part has left. Raises NotMeasuredError where there are none."""
        seconds = self.ends - time.monotonic()
        if seconds <= 0:
            raise NotMeasuredError("not begun: the time of this part was over")
        return seconds

    def share(self, of: int) -> "Conditions":
        """The same, with one of `of` equal shares of the time that is left."""
        return replace(self, ends=time.monotonic() + self.left / of)

    def run(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """`report_of` of a module with its arguments, within the time that is left."""
        return report_of(["-m", *arguments], seconds=self.left, **options)


def row(part: str, what: str, unit: str, values: Found | float, **more: Any) -> Row:
    """A row of a part; a single value is this project's. more: `fixed`, and whatever else a Row takes."""
    found = values if isinstance(values, Found) else Found({"t5xpg": (values,)})
    return Row(name=part, what=what, unit=unit, found=found, command=f"make gpu PARTS={part}", **more)


def main() -> None:
    set_xla_flags()  # before jax is imported
    import jax

    from t5xpg.distributed import hardware

    first = jax.devices()[0]
    size = SIZES["cpu" if first.platform == "cpu" else "gpu"]
    facts = {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": jax.device_count(),
        "memory_bytes": hardware.device_memory(first),
        "published_flops": {dtype: hardware.peak_flops(first, dtype) for dtype in DTYPES},
        "measured_flops": {dtype: hardware.measured_peak_flops(dtype, size=size, seconds=SECONDS) for dtype in DTYPES},
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
