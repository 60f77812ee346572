"""SeqIO tasks: importing this module registers every task, for this package and for any user of SeqIO or T5X.

The text is looked for in the folder T5XPG_DATA_DIR, or `data` of the checkout; caches in T5XPG_CACHE_DIR, or `cache` of
the checkout, beside the cache folders that SeqIO is told of otherwise.
"""

from t5xpg.data.tasks.registered import TASKS

__all__ = ["TASKS"]
