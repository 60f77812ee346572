"""SeqIO tasks: importing this module registers every task, for this package and for any user of SeqIO or T5X.

Text is read from the folder T5XPG_DATA_DIR (default: `data`), and caches from T5XPG_CACHE_DIR (default: `cache`) and
from the cache folders that SeqIO was given otherwise. `data` and `cache` lie in the checkout or, for an installed
package, in the working directory.
"""

from t5xpg.data.tasks.registered import TASKS

__all__ = ["TASKS"]
