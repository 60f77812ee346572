"""Several processes that train together, one on each host: who they are, what they tell each other, who does what.

Every process runs the same program. Each reads the rows of a batch that its devices hold (`rows`), and all of them
compute. What a run writes, the first one writes; to checkpoints all of them add their parts.
"""

from t5xpg.hosts.group import ALONE, Alone, Group, Processes
from t5xpg.hosts.joining import join

__all__ = ["ALONE", "Alone", "Group", "Processes", "join"]
