"""The training step of this project, as `make train` compiles it: a contestant of `benchmarks.step`."""

from benchmarks import step_timing
from benchmarks.jobs import JOBS
from t5xpg.base.cpu_flags import set_cpu_flags


def main() -> None:
    given = step_timing.orders(__doc__)
    set_cpu_flags()  # before jax is imported
    from benchmarks.own_step import OwnStep, experiment
    from t5xpg.exchange.huggingface.params import params_from_transformers

    job = JOBS[given.job]
    step = OwnStep(experiment(job, given.dtype))
    step.start_from(params_from_transformers(job.weights(), step.parts.experiment.model.config))
    batches = [step.on_devices(batch) for batch in job.batches()]
    step_timing.measure(lambda number: float(step(batches[number])["loss"]), given.steps)


if __name__ == "__main__":
    main()
