"""Decoding of this project, as `make infer` compiles it: a contestant of `benchmarks.decoding`."""

import dataclasses
import functools

from benchmarks.decoding_jobs import JOBS, measure, parse_options, sources
from t5xpg.base.xla_flags import set_xla_flags


def main() -> None:
    given = parse_options(__doc__)
    set_xla_flags()  # before jax is imported
    import jax
    import numpy as np

    from t5xpg.exchange.huggingface.config import config_from_transformers
    from t5xpg.exchange.huggingface.params import params_from_transformers
    from t5xpg.models import decoding
    from t5xpg.models.encoder_decoder import EncoderDecoderModel

    job = JOBS[given.job]
    model = EncoderDecoderModel(dataclasses.replace(config_from_transformers(job.settings()), dtype=given.dtype))
    params = jax.device_put(params_from_transformers(job.weights(), model.config))
    tokens = sources(job)
    config = decoding.DecodingConfig()
    if given.beams > 1:
        config = decoding.DecodingConfig(
            "beam", num_decodes=given.beams, length_penalty="transformers", alpha=1.0, return_all_decodes=False
        )
    decode = jax.jit(functools.partial(decoding.decode, model, config=config, max_decode_length=job.targets))
    measure(lambda: np.asarray(decode(params, tokens).tokens[:, 0]), given.calls, job.targets)


if __name__ == "__main__":
    main()
