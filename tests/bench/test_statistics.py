"""What rounds of times say, on times whose truth is known: noise, drift, outliers, and who went first."""

import math
import random
from statistics import median

import pytest

from nvfp4_suite.bench import statistics
from nvfp4_suite.bench.statistics import Comparison, compare

ROUNDS = 32


def timed(cost, rounds=ROUNDS, seed=0, noise=0.01):
    """Two contenders, timed in turns; `cost(contender, turn)` is what each takes without noise."""
    draw, turns = random.Random(seed), statistics.order(2, rounds)
    times = [cost(who, turn) * draw.lognormvariate(0, noise) for turn, who in enumerate(turns)]
    return compare(*statistics.by_contender(turns, times))


def test_three_percent_are_found_and_named():
    found = [timed(lambda who, turn: 1.03 if who == 0 else 1.0, seed=seed) for seed in range(100)]
    assert all(one.word == "slower" and abs(one.ratio - 1.03) < 0.012 for one in found)
    found = [timed(lambda who, turn: 1.03 if who == 1 else 1.0, seed=seed) for seed in range(100)]
    assert all(one.word == "faster" and abs(one.ratio * 1.03 - 1) < 0.012 for one in found)


def test_nothing_is_found_where_nothing_is():
    found = [timed(lambda who, turn: 1.0, seed=seed) for seed in range(400)]
    words = [one.word for one in found]
    assert not {"slower", "faster"} & set(words) and words.count("same") > 390


@pytest.mark.parametrize("drift", [0.2, -0.2])
def test_a_card_that_gets_slower_is_no_difference(drift):
    """A fifth from the first turn to the last, without noise: not the second who is timed pays for it."""

    def cost(who, turn):
        return 1 + drift * turn / (2 * ROUNDS)

    found = timed(cost, noise=0)
    assert abs(found.ratio - 1) < 1e-3 and found.word == "same"
    assert all(timed(cost, seed=seed).word == "same" for seed in range(50))


def test_a_card_that_drifts_hides_no_difference():
    found = timed(lambda who, turn: (1 + turn / ROUNDS) * (1.03 if who == 0 else 1), noise=0.003)
    assert found.word == "slower" and abs(found.ratio - 1.03) < 0.005


def test_a_step_in_the_clock_costs_one_pair():
    found = timed(lambda who, turn: 1.0 if turn < 21 else 1.5, noise=0.002)
    assert abs(found.ratio - 1) < 0.01 and found.word == "same"


def test_who_comes_second_in_a_round_pays_nothing():
    """Every other turn is 10 % slower: whoever follows somebody else."""
    found = timed(lambda who, turn: 1.1 if turn % 2 else 1.0, noise=0)
    assert found.ratio == pytest.approx(1) and found.word == "same"


def test_outliers_move_nothing():
    def cost(who, turn):
        return 8.0 if turn % 23 == 5 else 1.0

    assert timed(cost, noise=0.002, rounds=64).word == "same"


def test_noise_that_hides_everything_is_unclear():
    found = timed(lambda who, turn: 1.0, noise=0.2, rounds=16)
    assert found.word == "unclear" and found.noise > 0.02


@pytest.mark.parametrize(
    ("comparison", "word"),
    [
        (Comparison(1.009, 1.008, 1.0095), "same"),  # certain, and too little to name
        (Comparison(1.011, 1.009, 1.013), "slower"),
        (Comparison(1.03, 0.999, 1.06), "unclear"),
        (Comparison(1 / 1.011, 0.98, 0.999), "faster"),
        (Comparison(0.995, 0.985, 1.015), "same"),
        (Comparison(0.995, 0.95, 1.015), "unclear"),
    ],
)
def test_the_rule_of_the_words(comparison, word):
    assert comparison.word == word


@pytest.mark.parametrize("count", range(8, 81))
def test_the_interval_holds_the_median_as_often_as_it_says(count):
    """By the binomial law: with one value less on either side it would not."""
    out = statistics.outside(count)

    def missed(beyond):
        return 2 * sum(math.comb(count, place) for place in range(beyond + 1)) / 2**count

    assert missed(out) <= 1 - statistics.CONFIDENCE < missed(out + 1)


def test_the_interval_is_of_values_in_order():
    ratios = [1.0 + place / 100 for place in range(16)]
    times = [ratio for ratio in random.Random(1).sample(ratios, 16) for _ in range(2)]
    found = compare(times, [1.0] * 32)
    out = statistics.outside(16)
    assert out == 2
    expected = (median(ratios), ratios[2], ratios[13])
    assert (found.ratio, found.low, found.high) == pytest.approx(expected)


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="there are 7 and 7 pairs, but should be 8 or more"):
        compare([1.0] * 15, [1.0] * 15)
    with pytest.raises(ValueError, match="8 and 9 pairs"):
        compare([1.0] * 16, [1.0] * 18)


def test_turns_go_forward_and_backward():
    assert statistics.order(3, 4) == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]
    assert statistics.by_contender([0, 1, 1, 0], [1.0, 2.0, 3.0, 4.0]) == [[1.0, 4.0], [2.0, 3.0]]
    with pytest.raises(ValueError):
        statistics.by_contender([0, 1], [1.0])


def test_rounds_are_even_and_enough():
    assert statistics.rounds_for(seconds=1.0, budget=0.25) == 16
    assert statistics.rounds_for(seconds=0.01, budget=0.25) == 24
    assert statistics.rounds_for(seconds=1e-6, budget=0.25) == statistics.rounds_for(0, 0.25) == 80


def test_times_are_settled_once_they_no_longer_fall():
    falling = [2.0, 1.8, 1.6, 1.4, 1.2, 1.1, 1.05, 1.02]
    assert not statistics.settled(falling) and not statistics.settled([1.0] * 7)
    assert statistics.settled([*falling, *[1.0] * 8])


def test_a_geometric_mean():
    assert statistics.geometric_mean([1.0, 4.0]) == pytest.approx(2)
    with pytest.raises(ValueError, match="at least one"):
        statistics.geometric_mean([])
