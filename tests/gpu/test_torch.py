import pytest


def test_torch_is_installed():
    pytest.importorskip("torch", reason="torch is not installed, so no test of gpu/ runs: pip install 'kvtwin[gpu]'")
