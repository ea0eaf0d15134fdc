"""A run of somebody's server beside its simulation: the same requests, at the same times."""
