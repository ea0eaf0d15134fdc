"""What tests of readers share."""

import pytest


@pytest.fixture
def write(tmp_path):
    """A function that writes lines to a file and returns its path."""

    def path(*lines, name="trace"):
        file = tmp_path / name
        file.write_text("\n".join(lines) + "\n")
        return file

    return path
