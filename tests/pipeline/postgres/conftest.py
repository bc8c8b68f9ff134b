"""Every test here has a database of its own."""

import pytest


@pytest.fixture
def database(postgres_database):
    return postgres_database
