"""The training step of this project, as `make train` compiles it: a contestant of `benchmarks.step`."""

from benchmarks import step_timing
from benchmarks.jobs import JOBS
from t5xpg.base.xla_flags import set_xla_flags


def main() -> None:
    given = step_timing.parse_options(__doc__)
    set_xla_flags()  # before jax is imported
    import jax

    from benchmarks.own_step import OwnStep, experiment
    from t5xpg.exchange.huggingface.params import params_from_transformers

    job = JOBS[given.job]
    step = OwnStep(experiment(job, given.dtype, microbatches=given.microbatches))
    step.start_from(params_from_transformers(job.weights(), step.parts.experiment.model.config))
    batches = [step.on_devices(batch) for batch in job.batches()]
    norms: list[float] = []

    def update(number: int) -> float:
        metrics = step(batches[number])
        norms.append(float(metrics["gradient_norm"]))
        return float(metrics["loss"])

    def device_memory() -> int | None:
        """The most bytes of arrays and of XLA's temporaries; None where the device does not count them."""
        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")

    facts = {"device": step.parts.devices["kind"], "compile_seconds": step.compile_seconds, "gradient_norms": norms}
    step_timing.measure(update, given.steps, device_memory=device_memory, **facts)


if __name__ == "__main__":
    main()
