"""A run, in the formats of other tools: one file per format, with ``export(run, file)``."""
