"""The routers, one file each; :mod:`kvtwin.sim.cluster.routers.registry` has them by name."""
