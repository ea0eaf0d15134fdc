"""A measured run beside its simulation, and the checks of both."""
