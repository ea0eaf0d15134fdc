"""Pictures of runs and sweeps. matplotlib is imported only here."""
