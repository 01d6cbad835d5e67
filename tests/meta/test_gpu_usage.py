"""What a session says of how it filled its GPUs: workers of one GPU overlap, and gaps count."""

import pytest

from ..gpu_usage import covered


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(0.0, 2.0)], 2.0),
        ([(0.0, 2.0), (1.0, 3.0)], 3.0),  # two workers at once
        ([(0.0, 4.0), (1.0, 2.0), (3.5, 5.0)], 5.0),  # one inside another
        ([(5.0, 6.0), (0.0, 1.0)], 2.0),  # a gap, in any order
    ],
)
def test_covered(spans, seconds):
    assert covered(spans) == seconds
