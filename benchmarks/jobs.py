"""The training jobs that all contestants are given: sizes, weights and batches, made of numpy and the text of LICENSE.

Every contestant imports this, in whatever environment it lives: nothing but numpy is imported.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TEXT = Path(__file__).resolve().parents[1] / "LICENSE"
BYTE_OFFSET = 3  # a byte's id in T5's vocabularies of bytes
END = 1
SEGMENTS = 2  # packed into a row
Z_LOSS = 1e-4
LEARNING_RATE = 1e-3
B1, B2, EPSILON = 0.9, 0.999, 1e-8  # AdamW, without weight decay and clipping
NUM_BATCHES = 8  # different batches, which are then repeated


@dataclass(frozen=True)
class Job:
    """A T5 1.1 (gated GELU, output matrix of its own) over bytes, and the size of its batches."""

    emb: int
    mlp: int
    inputs: int
    targets: int
    heads: int = 4
    head_dim: int = 32
    encoder_layers: int = 4
    decoder_layers: int = 2
    batch: int = 16
    vocabulary: int = 384

    def settings(self) -> dict[str, Any]:
        """The model in the terms of transformers' config.json."""
        return {
            "model_type": "t5", "vocab_size": self.vocabulary, "d_model": self.emb, "d_kv": self.head_dim,
            "d_ff": self.mlp, "num_layers": self.encoder_layers, "num_decoder_layers": self.decoder_layers,
            "num_heads": self.heads, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0,
            "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0,
        }  # fmt: skip

    def weights(self) -> dict[str, np.ndarray]:
        """Float32 tensors under transformers' names and in its layout [outputs, inputs], of the size T5 starts with."""
        rng = np.random.default_rng(0)
        return {name: self._tensor(rng, name, shape) for name, shape in self._shapes()}

    def _tensor(self, rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if "layer_norm" in name:
            return np.ones(shape, np.float32)
        scale = 1.0 if name == "shared.weight" else shape[-1] ** -0.5
        if name.endswith(".q.weight"):
            scale *= self.head_dim**-0.5
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        joined = self.heads * self.head_dim
        yield "shared.weight", (self.vocabulary, self.emb)
        for stack, layers in (("encoder", self.encoder_layers), ("decoder", self.decoder_layers)):
            attentions = ["SelfAttention"] if stack == "encoder" else ["SelfAttention", "EncDecAttention"]
            yield f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, self.heads)
            for index in range(layers):
                layer = f"{stack}.block.{index}.layer"
                for number, attention in enumerate(attentions):
                    yield f"{layer}.{number}.layer_norm.weight", (self.emb,)
                    for matrix in "qkv":
                        yield f"{layer}.{number}.{attention}.{matrix}.weight", (joined, self.emb)
                    yield f"{layer}.{number}.{attention}.o.weight", (self.emb, joined)
                yield f"{layer}.{len(attentions)}.layer_norm.weight", (self.emb,)
                for matrix in ("wi_0", "wi_1"):
                    yield f"{layer}.{len(attentions)}.DenseReluDense.{matrix}.weight", (self.mlp, self.emb)
                yield f"{layer}.{len(attentions)}.DenseReluDense.wo.weight", (self.emb, self.mlp)
            yield f"{stack}.final_layer_norm.weight", (self.emb,)
        yield "lm_head.weight", (self.vocabulary, self.emb)

    def batches(self) -> list[dict[str, np.ndarray]]:
        """Packed batches under SeqIO's names, int32: a row has SEGMENTS pieces of text, each with its continuation."""
        text = np.frombuffer(TEXT.read_bytes(), np.uint8).astype(np.int32) + BYTE_OFFSET
        rng = np.random.default_rng(1)
        return [self._packed(rng, text) for _ in range(NUM_BATCHES)]

    def _packed(self, rng: np.random.Generator, text: np.ndarray) -> dict[str, np.ndarray]:
        shapes = {"encoder": (self.batch, self.inputs), "decoder": (self.batch, self.targets)}
        ids, segments, positions = (
            {name: np.zeros(shape, np.int32) for name, shape in shapes.items()} for _ in range(3)
        )
        for row in range(self.batch):
            at = {"encoder": 0, "decoder": 0}
            for segment in range(1, SEGMENTS + 1):
                place = int(rng.integers(0, len(text) - self.inputs - self.targets))
                for name in shapes:
                    room = shapes[name][1] - at[name]
                    left = SEGMENTS - segment
                    length = room if not left else int(rng.integers(room // (left + 2), room // (left + 1)))
                    here = slice(at[name], at[name] + length)
                    ids[name][row, here] = [*text[place : place + length - 1], END]
                    segments[name][row, here] = segment
                    positions[name][row, here] = np.arange(length)
                    place, at[name] = place + length - 1, at[name] + length
        inputs = np.concatenate([np.zeros((self.batch, 1), np.int32), ids["decoder"][:, :-1]], axis=1)
        return {
            "encoder_input_tokens": ids["encoder"],
            "encoder_segment_ids": segments["encoder"],
            "encoder_positions": positions["encoder"],
            "decoder_target_tokens": ids["decoder"],
            # every segment begins with 0
            "decoder_input_tokens": np.where(positions["decoder"] == 0, 0, inputs),
            "decoder_segment_ids": segments["decoder"],
            "decoder_positions": positions["decoder"],
            "decoder_loss_weights": np.ones(shapes["decoder"], np.int32),
        }

    def sources(self) -> np.ndarray:
        """int32 [batch, inputs] to decode: pieces of text, each with its end; a fourth of the rows are shorter."""
        tokens = self.batches()[0]["encoder_input_tokens"]
        tokens = np.where(tokens == END, END + 2, tokens)  # rows are packed: no end but the last
        tokens[:, -1] = END
        short = self.inputs * 3 // 4
        tokens[::4, short - 1], tokens[::4, short:] = END, 0
        return tokens

    def flops(self) -> float:
        """Floating point operations of the matrix products of one step, forward and backward (twice forward)."""
        joined, S, T = self.heads * self.head_dim, self.inputs, self.targets
        projection, pair, mlp = 2 * self.emb * joined, 4 * joined, 6 * self.emb * self.mlp
        encoder = S * (4 * projection + mlp) + S * S * pair
        decoder = T * (4 * projection + mlp) + T * T * pair + (2 * T + 2 * S) * projection + T * S * pair
        logits = 2 * T * self.emb * self.vocabulary
        return 3.0 * self.batch * (self.encoder_layers * encoder + self.decoder_layers * decoder + logits)

    @property
    def tokens(self) -> int:
        """Padded tokens of a batch, inputs and targets."""
        return self.batch * (self.inputs + self.targets)


def t5_1_1(emb: int, mlp: int, heads: int, layers: int, batch: int = 128) -> Job:
    """A size of T5 1.1 with its own vocabulary, and pretraining's lengths; `gin/models/t5_1_1_*.gin` has the same."""
    return Job(emb, mlp, 512, 114, heads, 64, layers, layers, batch, vocabulary=32_128)


JOBS = {
    "small": Job(emb=128, mlp=512, inputs=256, targets=64),
    "larger": Job(emb=256, mlp=1024, inputs=512, targets=114),
    # of decoding: the published demo's model over bytes; T5 1.1 small
    "decoding, tiny": Job(emb=128, mlp=512, inputs=256, targets=64, batch=32),
    "decoding, small": t5_1_1(512, 1024, 6, 8, batch=32),
    "decoding, small, 8 rows": t5_1_1(512, 1024, 6, 8, batch=8),
    # of `make gpu`
    "t5_1_1_small": t5_1_1(512, 1024, 6, 8),
    "t5_1_1_base": t5_1_1(768, 2048, 12, 12),
    "t5_1_1_large": t5_1_1(1024, 2816, 16, 24),
    "a layer of t5_1_1_base": t5_1_1(768, 2048, 12, 1, batch=8),
    "decoding, t5_1_1_base": t5_1_1(768, 2048, 12, 12, batch=32),
}
