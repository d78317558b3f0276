import logging

import pytest
from wire import Fleet


@pytest.fixture
def fleet(tmp_path, caplog):
    caplog.set_level(logging.INFO, "taciturn.fleet")
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()
