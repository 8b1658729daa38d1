"""Trained models, once for all modules of tests."""

from __future__ import annotations

import pytest

from tests.models.digits import train_digits
from tests.models.docstrings import train_docstrings
from tests.models.trained import TRAINED
from tests.models.training import Trained


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Trained:
    return train_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def docstrings(tmp_path_factory) -> Trained:
    return train_docstrings(tmp_path_factory.mktemp("docstrings"))


@pytest.fixture(scope="module", params=TRAINED)
def trained(request) -> Trained:
    return request.getfixturevalue(TRAINED[request.param])
