"""Environment variables by which T5X's process is told what its gin files cannot say."""

OBJECTIVE = "T5XPG_ENGINE_OBJECTIVE"  # JSON of the noise that takes the place of the table's
MODULES = "T5XPG_ENGINE_MODULES"  # the user's modules that register tasks, between spaces
