"""The table's tasks in SeqIO's registry. Importing this registers them, and names our cache folder to SeqIO."""

import seqio

from t5xpg.base.paths import cache_directory, data_directory
from t5xpg.data.tasks.table import register_tasks

TASKS = register_tasks(data_directory())
seqio.add_global_cache_dirs([str(cache_directory())])
