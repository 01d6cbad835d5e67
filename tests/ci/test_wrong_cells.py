"""The grid of wrong elements: every element in its cell, cells with the edges of tiles, and few of them."""

import pytest
import torch

from nvfp4_suite.ci import wrong_cells


def wrong(*shape: int, at: tuple = ()) -> torch.Tensor:
    found = torch.zeros(shape, dtype=torch.bool)
    for place in at:
        found[place] = True
    return found


def test_a_small_output_has_a_cell_an_element():
    found = wrong_cells.counts(wrong(2, 3, at=[(0, 2), (1, 0)]))
    assert found == {"shape": [2, 3], "cell": [1, 1], "wrong": [[0, 0, 1], [1, 0, 0]]}


@pytest.mark.parametrize(
    ("shape", "cell"),
    [((48, 96), [1, 1]), ((49, 97), [2, 2]), ((4096, 6144), [128, 64]), ((1, 1040), [1, 16]), ((33, 272), [1, 4])],
)
def test_cells_are_few_and_of_powers_of_two(shape, cell):
    found = wrong_cells.counts(wrong(*shape))
    assert found["cell"] == cell
    assert len(found["wrong"]) == -(-shape[0] // cell[0]) <= wrong_cells.ROWS
    assert {len(row) for row in found["wrong"]} == {-(-shape[1] // cell[1])}


def test_each_wrong_element_is_counted_in_its_cell():
    places = [(0, 0), (1, 3), (2, 0), (48, 96), (48, 95)]
    found = wrong_cells.counts(wrong(49, 97, at=places))["wrong"]
    expected = [[0] * 49 for _ in range(25)]
    for row, column in places:
        expected[row // 2][column // 2] += 1
    assert found == expected


def test_what_is_no_matrix_has_rows_all_the_same():
    assert wrong_cells.counts(wrong(2, 2, 4, at=[(1, 0, 3)]))["shape"] == [4, 4]
    assert wrong_cells.counts(torch.tensor(True)) == {"shape": [1, 1], "cell": [1, 1], "wrong": [[1]]}
