"""Room for the largest tests: each of them takes most of its worker's share of the card's memory."""

import pytest

from ..held import release


@pytest.fixture
def whole_share():
    """Lets go of what earlier tests left, which counts against this worker's share, an eighth of the card or less."""
    release()
