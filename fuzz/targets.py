"""What is fuzzed: functions of bytes that hold what must be true of any input, and small inputs to begin with.

A target accepts what it is given or refuses it with a `UserError` of one line; anything else that it raises is a
finding. The tests run every target too, on these beginnings and on what was found (tests/bad_input), without a fuzzer.
"""

import atexit
import bz2
import functools
import gzip
import json
import lzma
import math
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zstandard
from flax import serialization

from t5xpg.base.errors import UserError
from t5xpg.data.batch import BatchSpec, validate
from t5xpg.data.recording.format import StreamReader, StreamWriter, stream_path
from t5xpg.data.tensorflow_checkpoint import TensorFlowCheckpoint
from t5xpg.data.text.lines import LeftOutRows
from t5xpg.data.text.local_records import records
from t5xpg.data.text.manifest import Manifest, SplitRecord, canonical_line, read_manifest
from t5xpg.data.vocab.sentinels import blanks_of, fill
from t5xpg.data.vocab.tokenizers import HuggingFaceTokenizer
from t5xpg.exchange.formats.t5x_files import MESSAGE, METADATA, open_checkpoint
from t5xpg.exchange.formats.torch_files import TorchFile

Target = Callable[[bytes], None]

_CHECKPOINTS = Path(__file__).resolve().parents[1] / "tests" / "goldens" / "families"

# The first byte of an input chooses one.
_FORMS = (".jsonl", ".txt", ".jsonl.gz", ".jsonl.zst", ".txt.xz", ".jsonl.bz2")


@functools.cache
def _folder() -> Path:
    """A folder of this process, removed with it."""
    folder = tempfile.mkdtemp(prefix="t5xpg-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _refused(error: UserError, name: str) -> None:
    message = str(error)
    assert name in message, f"the message does not say which file: {message!r}"
    assert "\n" not in message, f"the message has many lines: {message!r}"
    message.encode("utf-8")


def local_files(data: bytes) -> None:
    """The reader of a user's text: both ways to treat bad lines agree, and what is read can be exported."""
    path = _folder() / f"input{_FORMS[data[0] % len(_FORMS)] if data else '.jsonl'}"
    path.write_bytes(data[1:])
    strict: list[str] = []
    refusal = None
    try:
        strict.extend(text for (text,) in records((path,)))
    except UserError as error:
        refusal = error
        _refused(error, str(path))
    left_out = LeftOutRows(skip_malformed=True)
    lenient: list[str] = []
    broken = None
    try:
        lenient.extend(text for (text,) in records((path,), left_out=left_out))
    except UserError as error:
        broken = error
        _refused(error, str(path))
    assert left_out.counts["malformed"] or (lenient, str(broken)) == (strict, str(refusal))
    assert len(left_out.first) <= left_out.counts["malformed"]
    left_out.summary().encode("utf-8")
    for text in lenient:
        line = canonical_line(text)
        assert line.count(b"\n") == 1
        exported = json.loads(line)["text"]
        assert len(exported) == len(text)
        exported.encode("utf-8")


def prompts(data: bytes) -> None:
    """The reader of a file of prompts, and what is done with a prompt before and after a model sees it."""
    from t5xpg.evaluate.infer_sources import read_rows

    path = _folder() / "prompts.jsonl"
    path.write_bytes(data)
    try:
        for record in read_rows(path):
            blanks = blanks_of(record.text)
            filled = fill(record.text, "".join(f"<extra_id_{blank}>" for blank in blanks))
            assert len(filled) <= len(record.text)
    except UserError as error:
        _refused(error, str(path))


def manifest(data: bytes) -> None:
    """The reader of an export's manifest: what it returns can be used, and names nothing outside of its folder."""
    folder = _folder() / "export"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(data)
    try:
        read = read_manifest(folder)
    except UserError as error:
        _refused(error, str(folder))
        return
    assert Manifest.from_json(json.loads(json.dumps(read.to_json()))) == read
    assert set(read.splits) <= {"train", "validation", "test"}
    assert all(isinstance(digest, str) for digest in read.identity.values())
    read.summary().encode("utf-8")
    assert not read.files_are_whole(folder) or not read.splits


def overrides(data: bytes) -> None:
    """The splitting of GIN="…", and the reading of each value as gin would."""
    from gin import config as gin
    from t5xpg.experiment import config
    from t5xpg.experiment.gin_reading import Reader

    text = data.decode("utf-8", errors="surrogateescape")
    try:
        bindings, files = config.split_overrides(text)
    except UserError as error:
        str(error).encode("utf-8")
        return
    assert text.count("--gin") >= len(bindings) + len(files)
    again = " ".join([*(f"--gin.{binding}" for binding in bindings), *(f"--gin_file={file}" for file in files)])
    assert config.split_overrides(again) == (bindings, files)
    for binding in bindings:
        if "import" in binding or "include" in binding:  # what gin is asked to import, it imports
            continue
        gin.clear_config()
        reader = Reader()
        reader.override(binding, {binding.partition("=")[0].strip()})
        for problem in reader.problems:
            assert "\n" not in problem, f"the message has many lines: {problem!r}"
            UserError(problem).args[0].encode("utf-8")
        assert reader.problems or len(reader.bound_at) == 1, f"{len(reader.bound_at)} values bound by {binding!r}"


_SPEC = BatchSpec(2, {"inputs": 4, "targets": 3}, False, 384)


def stream(data: bytes) -> None:
    """The reader of recorded batches. A batch that it hands out fits the spec.

    The input is the file where the first byte is odd, else an array in a file whose checksums are right.
    """
    path, is_array = stream_path(_folder(), "fuzzed"), data[:1] != b"" and data[0] % 2 == 0
    if is_array:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("0.npy", data[1:])
    else:
        path.write_bytes(data[1:])
    try:
        with StreamReader(path.parent, "fuzzed", 1 if is_array else 2) as reader:
            for number in range(len(reader)):
                validate(reader.read(number, _SPEC), _SPEC)
    except UserError as error:
        _refused(error, "fuzzed.")


def _stream_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        with StreamWriter(Path(name), "seed", _SPEC) as writer:
            for number in range(2):
                writer.write({key: np.full(shape, number, dtype) for key, (shape, dtype) in _SPEC.features().items()})
        path = stream_path(Path(name), "seed")
        with zipfile.ZipFile(path) as archive:
            return [b"\1" + path.read_bytes(), b"\0" + archive.read("0.npy"), b""]


def _manifest_seed() -> bytes:
    splits = {"train": SplitRecord(2, 300, "0" * 64), "validation": SplitRecord(1, 120, "f" * 64)}
    value = Manifest("mine", {"kind": "files"}, {"min_characters": 101}, None, 5, splits).to_json()
    return json.dumps(value).encode()


def torch_files(data: bytes) -> None:
    """PyTorch's files of parameters: every tensor is read, or the file refused; nothing in it is run."""
    path = _folder() / "pytorch_model.bin"
    path.write_bytes(data)
    try:
        assert all(array.nbytes <= len(data) for array in TorchFile(path).values())
    except UserError as error:
        _refused(error, path.name)


def t5x_checkpoints(data: bytes) -> None:
    """What describes a checkpoint of T5X, without its folders of arrays: MessagePack of T5X, JSON of orbax.

    The first byte chooses one.
    """
    path = _folder() / (METADATA if data[:1] == b"1" else MESSAGE)
    path.write_bytes(data[1:])
    try:
        for name, array in open_checkpoint(path).arrays.items():
            name.encode("utf-8", "surrogatepass")
            assert array.read().nbytes <= 8 * max(len(data), math.prod(array.shape))
    except UserError as error:
        _refused(error, str(path.parent))
    finally:
        path.unlink()


def _t5x_seeds() -> list[bytes]:
    """The smallest ones: a fuzzer reads no more than the beginning of a real one."""
    array = np.arange(3, dtype=np.float32)
    elsewhere = {"driver": "zarr", "kvstore": {"driver": "file", "path": "a"}, "metadata": {"shape": [3]}}
    message = {"version": 3, "optimizer": {"target": {"a": array, "b": elsewhere}, "state": {"step": 5}}}
    placeholder = {"target": {"a": "PLACEHOLDER://target.a"}}
    entry = {"key_metadata": [{"key": "target"}, {"key": "a"}], "value_metadata": {"value_type": "jax.Array"}}
    tree = {"tree_metadata": {"('target', 'a')": entry}, "use_zarr3": False}
    messages = [serialization.msgpack_serialize(one) for one in (message, placeholder)]
    return [*(b"0" + one for one in messages), b"1" + json.dumps(tree).encode()]


def tensorflow_index(data: bytes) -> None:
    """The index of a checkpoint of TensorFlow: every variable is read, or the file refused."""
    prefix = _folder() / "model.ckpt-5"
    prefix.with_name(f"{prefix.name}.index").write_bytes(data)
    data_file = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    if not data_file.is_file():
        data_file.write_bytes(_packed_golden("mesh_tensorflow", data_file.name))
    try:
        found = TensorFlowCheckpoint(prefix)
        for name in found.shapes:
            assert found.read(name).nbytes <= data_file.stat().st_size
    except UserError as error:
        _refused(error, prefix.name)


def tokenizer_files(data: bytes) -> None:
    """The reader of a Hugging Face tokenizer: what it reads gives text back, or it is refused."""
    path = _folder() / "tokenizer.json"
    path.write_bytes(data)
    try:
        found = HuggingFaceTokenizer(str(path))
        found.decode(found.encode("The dog sees."), follows=False).encode("utf-8")
    except UserError as error:
        _refused(error, path.name)


def _packed_golden(case: str, name: str) -> bytes:
    """A file of a packed checkpoint among the goldens."""
    with zipfile.ZipFile(_CHECKPOINTS.parent / "t5x" / f"{case}.zip") as packed:
        return packed.read(next(one for one in packed.namelist() if Path(one).name == name))


_LINES = (
    b'{"text": "a \\u00e9 \\ud800", "n": 1}\n\n\xef\xbb\xbf{"text": ""}\r\n'  # good, empty, good
    b'[1]\n{"texts": null}\n{"text": 3}\n\0\n\xff\n'  # each bad in its way
)
SEEDS: dict[str, list[bytes]] = {
    "local_files": [
        bytes([0]) + _LINES,
        bytes([1]) + _LINES,
        bytes([2]) + gzip.compress(_LINES),
        bytes([3]) + zstandard.compress(_LINES) * 2,
        bytes([4]) + lzma.compress(_LINES),
        bytes([5]) + bz2.compress(_LINES),
        b"",
    ],
    "prompts": [b'{"inputs": "The <extra_id_0> ruined <extra_id_1>", "id": 1}\n{"text": "<extra_id_00>"}\n', _LINES],
    "manifest": [_manifest_seed(), b"{}", b"[]", _manifest_seed().replace(b"train", b"../x")],
    "stream": _stream_seeds(),
    "overrides": [
        b"--gin.A=1 --gin.B={'x': 2, 'y': [1.5, None]} --gin_file=gin/a.gin",
        b"--gin.train/spec.DatasetConfig.split=other --gin.C=@optimizers.AdamW() --gin.D=%E",
        b"--gin.A='it''s' --gin.A=",
    ],
    "torch_files": [(_CHECKPOINTS / name / "small.bin").read_bytes() for name in ("old_bin", "archive_bin")],
    "t5x_checkpoints": [
        *_t5x_seeds(),
        b"0" + _packed_golden("t5_1_1", "checkpoint"),
        b"1" + _packed_golden("t5_1_1_orbax", "_METADATA"),
        b"0",
    ],
    "tensorflow_index": [_packed_golden("mesh_tensorflow", "model.ckpt-5.index"), b""],
    "tokenizer_files": [(_CHECKPOINTS / "t5" / "tokenizer.json").read_bytes(), b"{}"],
}
TARGETS: dict[str, Target] = {
    "local_files": local_files,
    "prompts": prompts,
    "manifest": manifest,
    "stream": stream,
    "overrides": overrides,
    "torch_files": torch_files,
    "t5x_checkpoints": t5x_checkpoints,
    "tensorflow_index": tensorflow_index,
    "tokenizer_files": tokenizer_files,
}
