"""The kernels on a CPU, by Triton's interpreter: it is chosen when Triton is imported, so for a whole process.

``tests/gpu/test_interpreted_kernels.py`` runs these tests in a process of their own; so does
``TRITON_INTERPRET=1 python -m pytest tests/gpu/interpreter``. Elsewhere they are not collected.
"""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    import torch

    torch.set_num_threads(1)

    @pytest.fixture(autouse=True)
    def _new_tensors_are_nan():
        """What a kernel leaves out is seen: torch fills new memory with NaN."""
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)
else:
    collect_ignore_glob = ["test_*.py"]
