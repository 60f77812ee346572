"""A model as graphs of ONNX, in the files and with the names that Hugging Face's Optimum and transformers.js load.

encoder_model.onnx is the encoder. decoder_model_merged.onnx has the decoder twice, with the same weights: for the first
call, which computes the keys and values of the source, and for later calls, which go on from `past_key_values`. Lengths
come from the inputs; none is fixed. Computed in float32. Shapes: B batch, S source, T positions of this call, P earlier
positions, D embedding, H heads, K head size, V vocabulary.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5xpg.base.files import write_json
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.exchange.formats.onnx_graph import Graph
from t5xpg.exchange.huggingface.architectures import ENCODER_DECODERS, known_kind, unshared
from t5xpg.exchange.huggingface.config import config_to_transformers
from t5xpg.exchange.huggingface.generation_config import generation_config
from t5xpg.exchange.to_engine import Engine
from t5xpg.experiment.experiment import Experiment
from t5xpg.models.attention.biases import MASKED
from t5xpg.models.attention.relative_positions import relative_position_bucket
from t5xpg.models.config import T5Config
from t5xpg.models.model import Model, Params

ENCODER, DECODER = "encoder_model.onnx", "decoder_model_merged.onnx"
_CACHED = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")  # what every layer keeps from call to call


def check_model(model: Model) -> None:
    """Raise UserError, with the reason, for a model that the graphs or the folder's config.json cannot express."""
    known_kind(model, ENCODER_DECODERS, "Optimum has no model")
    model.config.require_t5("The export to ONNX")
    config_to_transformers(model.config)


def write_graphs(folder: Path, model: Model, params: Params, quantization: str = "float32") -> None:
    """Write both files. quantization: "int8" for matrices and embeddings of 8 bits; the rest stays float32."""
    config, is_int8 = model.config, quantization == "int8"
    params = unshared(model, jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params))
    source, hidden = (np.int64, ["batch", "source"]), (np.float32, ["batch", "source", config.emb_dim])
    encoder, outputs = _T5(config, is_int8), dict[str, Any](last_hidden_state=hidden)
    encoder.add_node("Identity", list(outputs), encoder.encoder(params))
    encoder.save(folder / ENCODER, {"input_ids": source, "attention_mask": source}, outputs)

    decoder, branches = _T5(config, is_int8), {}
    for name, is_first in (("then_branch", False), ("else_branch", True)):
        branch = _T5(config, is_int8, decoder)
        branches[name] = branch.proto(name, {}, dict.fromkeys(branch.decoder(params, is_first), (np.float32, None)))
    inputs: dict[str, Any] = {"encoder_attention_mask": source, "input_ids": (np.int64, ["batch", "target"])}
    inputs["encoder_hidden_states"] = hidden
    outputs = {"logits": (np.float32, ["batch", "target", config.vocab_size])}
    for index, part in itertools.product(range(config.num_decoder_layers), _CACHED):
        # "head" instead of the size K: the empty past of Optimum's first call is D / H wide, whatever K is
        inputs[f"past_key_values.{index}.{part}"] = (np.float32, ["batch", config.num_heads, f"past_{part}", "head"])
        rows = "batch" if part.startswith("decoder") else "given"
        outputs[f"present.{index}.{part}"] = (np.float32, [rows, config.num_heads, f"present_{part}", config.head_dim])
    inputs["use_cache_branch"] = (np.bool_, [1])
    decoder.add_node("If", list(outputs), "use_cache_branch", **branches)
    decoder.save(folder / DECODER, inputs, outputs)


class _T5(Graph):
    """The nodes of T5."""

    def __init__(self, config: T5Config, int8: bool, branch_of: Graph | None = None) -> None:
        super().__init__(int8, branch_of)
        self.config = config

    def encoder(self, params: Params) -> str:
        """The encoder's output [B, S, D]."""
        stack, mask = params["encoder"], self.mask("attention_mask")
        layers = [stack[f"layers_{index}"] for index in range(self.config.num_encoder_layers)]
        x = self.rows(params["token_embedder"]["embedding"], "input_ids")
        for layer, position in zip(layers, self.positions(stack, layers), strict=True):
            y = self.norm(x, layer["pre_attention_layer_norm"])
            projections = self.projected(y, layer["attention"], "query", "key", "value")
            x = self.attention(x, layer["attention"]["out"], self("Add", position, mask), *projections)
            x = self.mlp(x, layer)
        return self.norm(x, stack["encoder_norm"])

    def decoder(self, params: Params, is_first: bool) -> list[str]:
        """The logits [B, T, V], and the keys and values of every layer, in the order of _CACHED.

        Later calls read the source's keys and values from `past_key_values` without a copy, and return empty ones: the
        caller keeps those of the first call, as Optimum does.
        """
        config, stack, embedding = self.config, params["decoder"], params["token_embedder"]["embedding"]
        layers = [stack[f"layers_{index}"] for index in range(config.num_decoder_layers)]
        x, mask = self.rows(embedding, "input_ids"), self.mask("encoder_attention_mask")
        positions = self.positions(stack, layers, 0 if is_first else self.length("past_key_values.0.decoder.key", 2))
        cache: list[str] = []
        for index, (layer, position) in enumerate(zip(layers, positions, strict=True)):
            past = [f"past_key_values.{index}.{part}" for part in _CACHED]
            self_attention, cross_attention = layer["self_attention"], layer["encoder_decoder_attention"]
            y = self.norm(x, layer["pre_self_attention_layer_norm"])
            queries, *pair = self.projected(y, self_attention, "query", "key", "value")
            if not is_first:
                pair = [self("Concat", before, new, axis=2) for before, new in zip(past[:2], pair, strict=True)]
            x = self.attention(x, self_attention["out"], position, queries, *pair)
            (queries,) = self.projected(self.norm(x, layer["pre_cross_attention_layer_norm"]), cross_attention, "query")
            source = self.projected("encoder_hidden_states", cross_attention, "key", "value") if is_first else past[2:]
            x = self.mlp(self.attention(x, cross_attention["out"], mask, queries, *source), layer)
            empty = np.array([0, config.num_heads, 1, config.head_dim])
            cache += [*pair, *(source if is_first else [self("ConstantOfShape", empty) for _ in source])]
        table = embedding.T / np.float32(math.sqrt(config.emb_dim))
        head = table if config.logits_via_embedding else stack["logits_dense"]["kernel"]
        return [self.product(self.norm(x, stack["decoder_norm"]), head), *cache]

    def norm(self, x: str, params: Params) -> str:
        """T5's norm, in the pattern of nodes that onnxruntime recognises and fuses."""
        mean = self("ReduceMean", self("Pow", x, np.float32(2)), [-1], keepdims=1)
        return self("Mul", self("Div", x, self("Sqrt", self("Add", mean, np.float32(1e-6)))), params["scale"])

    def products(self, x: str, params: Params, *names: str) -> list[str]:
        """x [B, T, D] times each of several matrices, computed as a single product."""
        joined = self.product(x, np.concatenate([params[name]["kernel"] for name in names], axis=1))
        return self.add_node("Split", range(len(names)), joined, axis=-1, num_outputs=len(names))

    def projected(self, x: str, params: Params, *names: str) -> list[str]:
        """x [B, T, D] -> [B, H, T, K] for each name."""
        heads = [0, 0, self.config.num_heads, self.config.head_dim]
        parts = self.products(x, params, *names)
        return [self("Transpose", self("Reshape", part, heads), perm=[0, 2, 1, 3]) for part in parts]

    def attention(self, x: str, out: Params, bias: str, queries: str, keys: str, values: str) -> str:
        """x [B, T, D] plus the output of an attention. bias: broadcast to [B, H, T, number of keys]."""
        logits = self("Add", self("MatMul", queries, self("Transpose", keys, perm=[0, 1, 3, 2])), bias)
        mixed = self("Transpose", self("MatMul", self("Softmax", logits, axis=-1), values), perm=[0, 2, 1, 3])
        joined = self("Reshape", mixed, [0, 0, self.config.num_heads * self.config.head_dim])
        return self("Add", x, self.product(joined, out["kernel"]))

    def mlp(self, x: str, layer: Params) -> str:
        """x [B, T, D] plus the output of the MLP."""
        activation, *gate = self.config.mlp_activations
        names = ["wi_0", "wi_1"] if gate else ["wi"]
        y, *gates = self.products(self.norm(x, layer["pre_mlp_layer_norm"]), layer["mlp"], *names)
        if activation == "gelu":
            y = self("Gelu", y, approximate="tanh")
        else:
            y = self("Relu", y) if activation == "relu" else self("Mul", y, self("Sigmoid", y))
        return self("Add", x, self.product(self("Mul", y, *gates) if gates else y, layer["mlp"]["wo"]["kernel"]))

    def positions(self, stack: Params, layers: list[Params], past: str | int | None = None) -> list[str]:
        """The bias [H, T, P + T] of every layer. past: P, int64 []; None for an encoder, which looks ahead, too."""
        config, first = self.config, 0 if past is None else past
        end, farthest = self("Add", first, self.length("input_ids", 1)), config.relative_attention_max_distance
        keys, queries = (self("Range", start, end, 1) for start in (0, first))
        distances = self("Sub", keys, self("Unsqueeze", queries, [1]))
        # beyond the farthest distance, all are in the last bucket
        near = self("Add", self("Clip", distances, -farthest, farthest), farthest)
        steps = np.arange(-farthest, farthest + 1, dtype=np.int32)
        buckets = relative_position_bucket(steps, past is None, config.relative_attention_num_buckets, farthest)
        biases = []
        for part in layers if config.relpos_bias_in_every_layer else [stack]:
            table = part["relpos_bias"]["rel_embedding"][:, buckets]
            table = table if past is None else np.where(steps > 0, np.float32(MASKED), table)
            biases.append(self("Gather", table, near, axis=1))
        return biases if config.relpos_bias_in_every_layer else biases * len(layers)

    def length(self, value: str, axis: int) -> str:
        """The size of an axis, int64 []."""
        return self("Squeeze", self("Shape", value, start=axis, end=axis + 1))

    def mask(self, visible: str) -> str:
        """int64 [B, S] -> float32 [B, 1, 1, S]: MASKED where it is 0."""
        hidden = self("Equal", self("Unsqueeze", visible, [1, 2]), 0)
        return self("Where", hidden, np.float32(MASKED), np.float32(0))


def _write(folder: Path, experiment: Experiment, params: Params, vocabulary: Vocabulary, quantization: str) -> None:
    write_graphs(folder, experiment.model, params, quantization)
    write_json(folder / "config.json", config_to_transformers(experiment.model.config, vocabulary.eos_id))
    longest = experiment.eval_dataset.task_feature_lengths["targets"]
    answer = generation_config(experiment.decoding, vocabulary, longest, vocabulary.pad_id)
    write_json(folder / "generation_config.json", answer)


def log_likelihood(folder: Path, inputs: np.ndarray, targets: np.ndarray) -> float:
    """See `Engine`."""
    import onnxruntime

    encoder, decoder = (onnxruntime.InferenceSession(str(folder / name)) for name in (ENCODER, DECODER))
    past_heads = {one.name: one.shape[1] for one in decoder.get_inputs() if one.name.startswith("past_key_values.")}
    first_call: dict[str, Any] = {name: np.zeros((1, heads, 0, 1), np.float32) for name, heads in past_heads.items()}
    first_call["use_cache_branch"] = np.array([False])
    total = 0.0
    for source, target in zip(inputs[:, None].astype(np.int64), targets[:, None].astype(np.int64), strict=True):
        mask = (source != 0).astype(np.int64)
        (hidden,) = encoder.run(None, {"input_ids": source, "attention_mask": mask})
        feeds = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
        feeds["input_ids"] = np.pad(target[:, :-1], ((0, 0), (1, 0)))
        logits = decoder.run(["logits"], {**first_call, **feeds})[0].astype(np.float64)  # of one row: V may be large
        logits -= logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
        total += float((chosen - np.log(np.exp(logits).sum(axis=-1)))[target != 0].sum())
    return total


ENGINE = Engine(
    "ONNX", "onnx", ("float32", "int8"), DECODER, check_model, _write, log_likelihood, runs_with="onnxruntime"
)
