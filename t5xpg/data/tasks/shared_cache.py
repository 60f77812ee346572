"""Tasks that share the cache of the tokens of one text. Imports TensorFlow.

SeqIO looks for a cache under the task's name. The objectives of the table differ only in what they do behind the
placeholder: what they would cache is the same for all, and is cached once.
"""

import hashlib
from typing import Any

import seqio
import tensorflow as tf


class SharedCacheTask(seqio.Task):
    """A task that makes the same examples up to its placeholder as the task `cached_as`, and reads its cache, if not
    its own. own_seed: its name is part of its seed, so that such tasks of a mixture read one text in different orders.
    """

    def __init__(self, name: str, *, cached_as: str, own_seed: bool = False, **arguments: Any) -> None:
        self.cached_as = cached_as
        self._own_seed = own_seed
        super().__init__(name, **arguments)

    @property
    def cache_dir(self) -> str | None:
        return super().cache_dir or seqio.TaskRegistry.get(self.cached_as).cache_dir

    def get_dataset(self, *arguments: Any, seed: int | None = None, **options: Any) -> tf.data.Dataset:
        """As `seqio.Task.get_dataset`, with `seed` by its name."""
        if self._own_seed and seed is not None:
            digest = hashlib.sha256(f"{seed} {self.name}".encode()).digest()
            seed = int.from_bytes(digest[:4], "little") % 2**31
        return super().get_dataset(*arguments, seed=seed, **options)

    def replace(self, **changes: Any) -> "SharedCacheTask":
        plain = super().replace(**changes)
        task = SharedCacheTask.__new__(SharedCacheTask)
        task.__dict__.update(vars(plain), cached_as=self.cached_as, _own_seed=self._own_seed)
        return task


def register(name: str, cached_as: str, own_seed: bool = False, **arguments: Any) -> None:
    """Register a task in the place of an earlier one of this name; one that reads another task's cache says so."""
    if cached_as != name:
        arguments |= {"task_cls": SharedCacheTask, "cached_as": cached_as, "own_seed": own_seed}
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(name, **arguments)


def cached_task(task: seqio.Task) -> seqio.Task:
    """The task whose cache a task reads: itself, or the one that it shares it with."""
    return seqio.TaskRegistry.get(task.cached_as) if isinstance(task, SharedCacheTask) else task
