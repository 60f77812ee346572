"""The update: its gradient, its metrics, and that parts add up to the whole."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5xpg.models.losses import LossConfig, loss_and_metrics
from t5xpg.models.model import Outputs
from t5xpg.models.rng import stream_key
from t5xpg.optim import state as state_lib
from t5xpg.optim.optimizers import Adafactor, AdamW
from t5xpg.optim.schedules import Constant
from t5xpg.optim.step import make_eval_step, make_train_step
from tests.small_models import seq2seq

V, D, S, T = 24, 8, 6, 5
TOKEN_BYTES = np.arange(V, dtype=np.int32) % 4


@dataclass(frozen=True)
class Settings:
    dropout_rate: float = 0.0


@dataclass(frozen=True)
class TinyModel:
    """A model with the interface of EncoderDecoderModel that compiles in an instant: T5 itself has its own tests."""

    config: Settings

    def init(self, key):
        embedding, hidden, head = jax.random.split(key, 3)
        return {
            "embedder": {"embedding": jax.random.normal(embedding, (V, D))},
            "hidden": {"kernel": jax.random.normal(hidden, (D, D)) / D**0.5},
            "logits_dense": {"kernel": jax.random.normal(head, (D, V)) / D**0.5},
        }

    def abstract_params(self):
        return jax.eval_shape(self.init, jax.random.key(0))

    def logical_axes(self):
        return {
            "embedder": {"embedding": ("vocab", "embed")},
            "hidden": {"kernel": ("embed", "mlp")},
            "logits_dense": {"kernel": ("embed", "vocab")},
        }

    def logits(self, params, batch):
        states, to_logits = self.outputs(params, batch)
        return to_logits(states)

    def outputs(self, params, batch, *, dropout_key=None):
        embedding = params["embedder"]["embedding"]
        encoded = jnp.mean(embedding[batch["encoder_input_tokens"]], axis=1, keepdims=True)
        hidden = jnp.tanh((encoded + embedding[batch["decoder_input_tokens"]]) @ params["hidden"]["kernel"])
        if dropout_key is not None:
            hidden = hidden * jax.random.bernoulli(dropout_key, 1 - self.config.dropout_rate, hidden.shape)
        return Outputs(hidden, lambda states: states @ params["logits_dense"]["kernel"])


def tiny(dropout_rate: float = 0.0) -> TinyModel:
    return TinyModel(Settings(dropout_rate))


def rows(B: int, seed: int = 0, *, packed: bool = False) -> dict[str, np.ndarray]:
    """A batch with rows of very different lengths, one of which is empty."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, T + 1, B)
    lengths[0] = 0
    targets = generator.integers(1, V, (B, T)) * (np.arange(T) < lengths[:, None])
    batch = seq2seq(generator.integers(1, V, (B, S)), targets) | {"decoder_loss_weights": (targets > 0) * 1}
    if packed:
        batch["encoder_segment_ids"] = np.repeat([[1, 1, 1, 2, 2, 2]], B, axis=0)
        batch["decoder_segment_ids"] = np.repeat([[1, 1, 2, 2, 2]], B, axis=0) * (targets > 0)
    return {name: array.astype(np.int32) for name, array in batch.items()}


def updated(model, optimizer, loss_config, batches, **options):
    state = state_lib.of_parameters(model, optimizer, model.init(stream_key(1, "params")))
    step = jax.jit(make_train_step(model, optimizer, loss_config, seed=1, token_bytes=TOKEN_BYTES, **options))
    metrics = {}
    for batch in batches:
        state, metrics = step(state, batch)
    return state, {name: float(value) for name, value in metrics.items() if np.ndim(value) == 0}


def distance(a, b) -> float:
    pairs = zip(*(map(np.float64, jax.tree.leaves(tree)) for tree in (a, b)), strict=True)
    squares = np.asarray([(np.sum((x - y) ** 2), np.sum(y**2)) for x, y in pairs]).sum(0)
    return np.sqrt(squares[0] / squares[1])


def test_an_update_is_the_optimisers_on_the_losss_gradient():
    model, optimizer, config = tiny(), AdamW(0.01), LossConfig()
    batch = rows(4)
    before = state_lib.of_parameters(model, optimizer, model.init(stream_key(1, "params")))
    loss_of = lambda params: loss_and_metrics(model.logits(params, batch), batch, config, TOKEN_BYTES)[0]  # noqa: E731
    loss, gradients = jax.jit(jax.value_and_grad(loss_of))(before.params)
    update = jax.jit(optimizer.transformation(model.logical_axes()).update)
    updates, _ = update(gradients, before.opt_state, before.params)
    expected = jax.tree.map(jnp.add, before.params, updates)
    after, metrics = updated(model, optimizer, config, [batch])
    assert distance(after.params, expected) < 1e-6
    assert int(after.step) == 1
    assert after.step.dtype == jnp.int32
    norm = np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(gradients)))
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-6)
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert metrics["learning_rate"] == pytest.approx(0.01)
    assert metrics["weights"] == (batch["decoder_target_tokens"] > 0).sum()
    assert metrics["target_bytes"] == TOKEN_BYTES[batch["decoder_target_tokens"]].sum()


@dataclass(frozen=True)
class Plain:
    """Gradient descent: Adam would magnify the rounding of small gradients."""

    learning_rate = Constant(0.1)

    def transformation(self, params_axes):
        return optax.sgd(0.1)


@pytest.mark.parametrize(
    ("factor", "packed", "counts"),
    [
        ("NUM_REAL_TARGET_TOKENS", False, (2, 8)),  # of eight parts one has no targets
        ("NUM_TOTAL_TARGET_TOKENS", False, (4,)),
        ("AVERAGE_PER_SEQUENCE", True, (4,)),
        ("AVERAGE_PER_SEQUENCE", False, (2,)),
        (None, False, (8,)),
    ],
)
def test_accumulation_equals_the_full_batch(factor, packed, counts):
    config = LossConfig(loss_normalizing_factor=factor, label_smoothing=0.1)
    batches = [rows(8, seed, packed=packed) for seed in range(2)]
    whole, whole_metrics = updated(tiny(), Plain(), config, batches)
    for num_microbatches in counts:
        parts, metrics = updated(tiny(), Plain(), config, batches, num_microbatches=num_microbatches)
        assert distance(parts.params, whole.params) < 1e-6
        assert metrics == pytest.approx(whole_metrics, rel=1e-5)


def test_the_average_follows_the_parameters():
    model, params = tiny(), tiny().init(stream_key(1, "params"))
    update = make_train_step(model, Plain(), LossConfig(), ema_decay=0.3, seed=0, token_bytes=TOKEN_BYTES)
    state = state_lib.of_parameters(model, Plain(), params, averaged=True)
    plain = state_lib.of_parameters(model, Plain(), params)
    without = make_train_step(model, Plain(), LossConfig(), seed=0, token_bytes=TOKEN_BYTES)
    expected = jax.tree.map(np.asarray, params)
    with jax.numpy_dtype_promotion("strict"):
        for decay, seed in ((0.1, 0), (2 / 11, 1), (0.25, 2), (0.3, 3)):  # (1 + t) / (10 + t), at most 0.3
            state, plain = jax.jit(update)(state, rows(4, seed))[0], jax.jit(without)(plain, rows(4, seed))[0]
            expected = jax.tree.map(
                lambda old, new, decay=decay: decay * old + (1 - decay) * np.asarray(new), expected, state.params
            )
    assert distance(state.params, plain.params) == 0
    assert distance(state.eval_params, expected) < 1e-6
    assert distance(state.eval_params, state.params) > 1e-4
    assert plain.eval_params is plain.params


def test_dropout_follows_the_seed_and_the_step():
    model = tiny(dropout_rate=0.5)
    batch = rows(4)
    params = model.init(stream_key(1, "params"))
    updates = {
        seed: jax.jit(make_train_step(model, Plain(), LossConfig(), seed=seed, token_bytes=TOKEN_BYTES))
        for seed in (1, 2)
    }
    losses = []
    for seed, at in ((1, 0), (1, 0), (1, 1), (2, 0)):
        state = state_lib.TrainState(step=jnp.int32(at), params=params, opt_state=optax.sgd(0.1).init(params))
        losses.append(float(updates[seed](state, batch)[1]["loss"]))
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_every_microbatch_has_its_own_dropout():
    # Twice the same rows in two parts: the parts' losses differ only where their masks do.
    batch = {name: np.repeat(array, 2, axis=0) for name, array in rows(4).items()}
    half, _ = updated(tiny(0.5), Plain(), LossConfig(), [rows(4)])
    both, _ = updated(tiny(0.5), Plain(), LossConfig(), [batch], num_microbatches=2)
    assert distance(half.params, both.params) > 1e-4


def test_evaluation_has_no_dropout_and_ignores_filling():
    model, config = tiny(dropout_rate=0.5), LossConfig()
    params = model.init(stream_key(1, "params"))
    evaluate = jax.jit(make_eval_step(model, config, token_bytes=TOKEN_BYTES))
    batch = rows(4)
    filled = {name: np.pad(array, ((0, 3), (0, 0))) for name, array in batch.items()}
    plain, padded = evaluate(params, batch), evaluate(params, filled)
    _, expected = loss_and_metrics(tiny().logits(params, batch), batch, config, TOKEN_BYTES)
    for name in ("cross_entropy", "weights", "correct", "target_bytes", "z_loss"):
        assert float(plain[name]) == pytest.approx(float(expected[name]), rel=1e-5)
        assert float(padded[name]) == pytest.approx(float(plain[name]), rel=1e-5)


def test_the_abstract_state_is_the_state():
    model, optimizer = tiny(), Adafactor(0.01, min_dim_size_to_factor=2)
    state = jax.eval_shape(lambda: state_lib.of_parameters(model, optimizer, model.init(stream_key(1, "params"))))
    abstract = state_lib.abstract(model, optimizer)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), abstract)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(abstract.params))
