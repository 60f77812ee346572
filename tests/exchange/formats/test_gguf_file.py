"""Files of llama.cpp: written with its own package, from the small checkpoints of transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import load_file
from sentencepiece import sentencepiece_model_pb2

from t5xpg.exchange.formats.gguf_file import GgufFile
from t5xpg.exchange.from_transformers import model_of
from t5xpg.exchange.importing import import_checkpoint
from t5xpg.run.directory import RunDirectory
from tests.refusals import refused
from tests.small_models import FAMILIES
from tests.small_tokenizers import sentencepiece_model

ARCHITECTURES = {"gemma2": "gemma2", "gemma3_text": "gemma3", "t5": "t5", "t5_1_1": "t5", "umt5": "t5"}
F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
TEXTS = ("bab beb", "  bob   gub", "bab\nx é", "", "kan 日本")


def source(family: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A checkpoint whose settings are those that llama.cpp fixes; and its tensors, each of them once."""
    config = json.loads((FAMILIES / family / "config.json").read_text())
    if family.startswith("gemma"):
        config |= {"query_pre_attn_scalar": config["head_dim"], "layer_types": None}
    if family == "gemma3_text":
        config["rope_parameters"]["sliding_attention"]["rope_theta"] = 10_000.0
    if family == "umt5":  # outputs that are not divided, as Google's
        config |= {"tie_word_embeddings": False, "scale_decoder_outputs": False}
    tensors = load_file(FAMILIES / family / "model.safetensors")
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    return config, {name: array for name, array in tensors.items() if name not in copies}


def write(
    path: Path,
    family: str,
    tokenizer: bytes = b"",
    kind: gguf.GGMLQuantizationType = F32,
    tensors: Mapping[str, np.ndarray] | None = None,
    **changes: Any,
) -> Path:
    """The checkpoint as a GGUF file. tokenizer: a SentencePiece model. kind: of matrices whose rows it can divide."""
    config, found = source(family)
    architecture = ARCHITECTURES[family]
    config, tensors = config | changes, found if tensors is None else tensors
    writer, is_t5 = gguf.GGUFWriter(path, architecture), architecture == "t5"
    layers = config["num_layers" if is_t5 else "num_hidden_layers"]
    writer.add_block_count(layers)
    writer.add_embedding_length(config["d_model" if is_t5 else "hidden_size"])
    writer.add_feed_forward_length(config["d_ff" if is_t5 else "intermediate_size"])
    writer.add_head_count(config["num_heads" if is_t5 else "num_attention_heads"])
    writer.add_key_length(config["d_kv" if is_t5 else "head_dim"])
    if is_t5:
        writer.add_layer_norm_eps(1e-6)
        writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
        writer.add_decoder_start_token_id(0)
    else:
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_sliding_window(config["sliding_window"])
        rope = config["rope_parameters"]
        rope = rope.get("full_attention", rope)
        writer.add_rope_freq_base(rope["rope_theta"])
        if "factor" in rope:
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        for name, add in (
            ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
            ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ):
            if config[name] is not None:
                add(config[name])
    names = gguf.get_tensor_name_map(
        next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), layers
    )
    for name, array in tensors.items():
        theirs = names.get_name(name, try_suffixes=(".weight",)) or name
        array = array + 1 if "norm" in name and not is_t5 else array
        is_divided = kind != F32 and array.ndim == 2 and array.shape[1] % 32 == 0
        data = gguf.quantize(array, kind) if is_divided else array
        writer.add_tensor(theirs, data, raw_dtype=kind if is_divided else None)
    add_tokenizer(writer, tokenizer, config["vocab_size"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: bytes, rows: int) -> None:
    """Write the pieces, and as llama.cpp does, unused tokens for the other rows of the embedding."""
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    writer.add_tokenizer_model("t5" if trainer.model_type == 1 else "llama")
    tokens = [piece.piece.replace("▁", " ") if piece.type == 4 else piece.piece for piece in model.pieces]
    unused = max(3, rows - len(tokens))
    writer.add_token_list([*tokens, *(f"[PAD{i}]" for i in range(unused))])
    writer.add_token_scores([*(piece.score for piece in model.pieces), *[0.0] * unused])
    writer.add_token_types([*(piece.type for piece in model.pieces), *[5] * unused])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(trainer.unk_id)
    if trainer.bos_id >= 0:
        writer.add_bos_token_id(trainer.bos_id)
    writer.add_add_space_prefix(normalizer.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(normalizer.remove_extra_whitespaces)
    if normalizer.precompiled_charsmap:
        writer.add_precompiled_charsmap(normalizer.precompiled_charsmap)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_it_is_the_model_that_transformers_has(tmp_path: Path, family: str) -> None:
    file = GgufFile(write(tmp_path / "model.gguf", family))
    model, params = model_of(file.settings() | {"bos_token_id": 2}, file.tensors())
    expected, expected_params = model_of(*source(family))
    assert model.config.recorded() == expected.config.recorded() | {"dropout_rate": model.config.dropout_rate}
    assert jax.tree.structure(params) == jax.tree.structure(expected_params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=3e-7), params, expected_params)


def test_quantised_matrices_are_near(tmp_path: Path) -> None:
    _, tensors = source("t5_1_1")
    wide = {name: np.tile(array, (2, 2)) if array.ndim == 2 else np.tile(array, 2) for name, array in tensors.items()}
    read = GgufFile(write(tmp_path / "model.gguf", "t5_1_1", kind=Q8_0, tensors=wide)).tensors()
    name, table = "encoder.block.0.layer.0.SelfAttention.q.weight", "shared.weight"
    assert read.keys() == wide.keys()
    np.testing.assert_array_equal(read[name], gguf.dequantize(gguf.quantize(wide[name], Q8_0), Q8_0))
    assert 0 < np.abs(read[table] - wide[table]).max() <= np.abs(wide[table]).max() / 127


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"model_type": "bpe", "byte_fallback": True, "vocab_size": 340, "add_dummy_prefix": False, "bos_id": 3,
         "remove_extra_whitespaces": False, "normalization_rule_name": "identity", "unk_id": 2,
         "user_defined_symbols": ["▁▁", "\n\n"]},
    ],
)  # fmt: skip
def test_its_tokenizer_gives_the_same_ids(tmp_path: Path, options: dict[str, Any]) -> None:
    original = sentencepiece.SentencePieceProcessor(
        model_file=sentencepiece_model(tmp_path / "spiece.model", **options)
    )
    content = (tmp_path / "spiece.model").read_bytes()
    file = GgufFile(write(tmp_path / "model.gguf", "t5_1_1", content))
    read = sentencepiece.SentencePieceProcessor(model_proto=file.sentencepiece_model().SerializeToString())
    assert [read.vocab_size(), read.pad_id(), read.eos_id(), read.unk_id(), read.bos_id()] == [
        original.vocab_size(), original.pad_id(), original.eos_id(), original.unk_id(), original.bos_id(),
    ]  # fmt: skip
    for text in (*TEXTS, "bab\n\n beb"):
        assert read.encode(text) == original.encode(text)
        assert read.decode(read.encode(text)) == original.decode(original.encode(text))


def test_a_file_becomes_a_run(runs: Path, tmp_path: Path) -> None:
    sentencepiece_model(tmp_path / "spiece.model", vocab_size=40)
    path = write(tmp_path / "flan-t5.gguf", "t5_1_1", (tmp_path / "spiece.model").read_bytes())
    run = import_checkpoint(str(path), runs)
    assert (run.name, RunDirectory(run).imported()["format"]) == ("flan_t5", "gguf")


def test_what_is_refused(tmp_path: Path) -> None:
    _, tensors = source("t5_1_1")
    name = "encoder.block.1.layer.0.SelfAttention.k.weight"
    path = tmp_path / "model.gguf"

    def imported(tensors: Mapping[str, np.ndarray]) -> None:
        sentencepiece_model(tmp_path / "spiece.model", vocab_size=40)
        write(path, "t5_1_1", (tmp_path / "spiece.model").read_bytes(), tensors=tensors)
        import_checkpoint(str(path), tmp_path / "runs")

    with refused(str(path), name):
        imported({key: array for key, array in tensors.items() if key != name})
    with refused(str(path), "enc.blk.0.attn_gate.weight"):
        imported({**tensors, "enc.blk.0.attn_gate.weight": np.ones((2, 2), np.float32)})
    with refused(str(path), name.replace("encoder.block.1.layer.0.SelfAttention.", "enc.blk.1.attn_"), "F64", "F16"):
        imported({**tensors, name: tensors[name].astype(np.float64)})
    whole = write(path, "t5_1_1").read_bytes()
    damaged = [b"", b"GGUF", whole[:100], whole[: len(whole) // 2], b"PK" + whole, whole[:4] + b"\xff" * 60]
    damaged += [
        whole.replace(b"[PAD0]", b"\xe2\xe2AD0]"),
        whole.replace(b"general.architecture", b"general.arhcitecture"),
    ]
    for content in damaged:
        path.write_bytes(content)
        with refused(str(path)):
            import_checkpoint(str(path), tmp_path / "runs")
    writer = gguf.GGUFWriter(path, "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with refused(str(path), "llama", "gemma3", "t5"):
        GgufFile(path)
    with refused(str(tmp_path / "modle.gguf"), "Did you mean model.gguf"):
        import_checkpoint(str(tmp_path / "modle.gguf"), tmp_path / "runs")
    with refused("modle.gguf", "no such file"):  # and is not looked for on the hub
        import_checkpoint("modle.gguf", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
