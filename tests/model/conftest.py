"""Every test of the model is steady."""

import pytest


@pytest.fixture(autouse=True)
def always_steady(steady: None) -> None:
    pass
