"""Step times measured on this machine, and the model that is fitted to them."""
