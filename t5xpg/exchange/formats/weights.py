"""The files of parameters in a folder of transformers: one file or several, safetensors or PyTorch's own."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from t5xpg.base.errors import UserError
from t5xpg.base.files import read_json
from t5xpg.exchange.formats.torch_files import LazyTensors, TorchFile

SAFETENSORS = "model.safetensors"
TORCH = "pytorch_model.bin"
INDEX = ".index.json"  # appended to either name: which tensor is in which of several files


def _safetensors(path: Path) -> LazyTensors:
    try:
        file = safe_open(str(path), framework="numpy")
        names = list(file.keys())
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({error}): {path.stat().st_size:,} bytes are there. Copy or "
            "download it again."
        ) from None

    def tensor(name: str) -> np.ndarray:
        try:
            return np.asarray(file.get_tensor(name))
        except (AttributeError, TypeError):  # NumPy has no such type
            kind = file.get_slice(name).get_dtype()
            raise UserError(
                f"{name} in {path} is of {kind}: expected float32, bfloat16 or float16. Save it as one of them."
            ) from None

    return LazyTensors({name: partial(tensor, name) for name in names})


_KINDS: Mapping[str, Callable[[Path], Mapping[str, np.ndarray]]] = {SAFETENSORS: _safetensors, TORCH: TorchFile}


def files_of(folder: Path) -> list[Path]:
    """The files that hold the parameters; of several, the index first. Raises UserError where there are none.

    Of several formats takes the first: model.safetensors, the same in parts, pytorch_model.bin, the same in parts.
    """
    for name in _KINDS:
        if (folder / name).is_file():
            return [folder / name]
        if (folder / f"{name}{INDEX}").is_file():
            index = folder / f"{name}{INDEX}"
            return [index, *(folder / part for part in sorted(set(_weight_map(index).values())))]
    raise UserError(
        f"{folder} holds no parameters: expected {SAFETENSORS} or {TORCH}, or either in parts. transformers "
        "makes them of tf_model.h5 and flax_model.msgpack (`save_pretrained`)."
    )


def open_weights(folder: Path) -> Mapping[str, np.ndarray]:
    """The tensors of a folder by name, each read when it is asked for. Raises UserError where some are missing."""
    first, *parts = files_of(folder)
    kind = _KINDS[first.name.removesuffix(INDEX)]
    if not parts:
        return kind(first)
    if absent := [part.name for part in parts if not part.is_file()]:
        raise UserError(
            f"{first} names {len(parts)} files, and {len(absent)} of them are not there: {', '.join(absent[:3])}"
            f"{' …' if len(absent) > 3 else ''}. Copy or download them, too."
        )
    tensors_of_file = {part.name: kind(part) for part in parts}
    files = _weight_map(first)
    if lost := next((name for name, file in files.items() if name not in tensors_of_file[file]), None):
        raise UserError(f"{first} says that {lost} is in a file that lacks it: the files are not of one checkpoint.")
    return LazyTensors({name: partial(tensors_of_file[file].__getitem__, name) for name, file in files.items()})


def _weight_map(index: Path) -> dict[str, str]:
    """{tensor: file name} from an index. Raises UserError where it is damaged, or names files outside its folder."""
    try:
        names = read_json(index)["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{index} is not an index of files of tensors ({type(error).__name__}: {error}).") from None
    if not isinstance(names, dict) or not names:
        raise UserError(f"{index} names no files of tensors.")
    for file in names.values():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise UserError(f"{index} names {file!r}: expected the name of a file beside it.")
    return names


def as_float32(name: str, array: np.ndarray) -> np.ndarray:
    """A weight as float32. Raises UserError for a weight of integers, and for one with NaN or infinite numbers."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise UserError(f"{name} of the checkpoint is of {array.dtype}: weights are floating-point numbers.")
    array = array.astype(np.float32)
    if bad := array.size - int(np.isfinite(array).sum()):
        raise UserError(f"{name} of the checkpoint has {bad:,} of {array.size:,} numbers that are NaN or infinite.")
    return array


def first_names(names: Sequence[str]) -> str:
    """The first five names for a message, and how many more there are; an empty text if there are none."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
