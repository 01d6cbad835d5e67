"""Losses and the suggested entry on times that are known; and a sweep's course, without a GPU."""

import math
import random

import pytest

from nvfp4_suite.bench import sweep, sweep_run
from nvfp4_suite.bench.__main__ import main
from nvfp4_suite.bench.sweep import Loss
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.kernels.tiles import Tile
from nvfp4_suite.kernels.variants import DEFAULT, VARIANTS

from .fake_host import FakeTimer, host

H200, RTX_4090 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA GeForce RTX 4090", (8, 9))
SMALL, LARGE, NEVER = Tile(16), Tile(128), Tile(64)
A, B, C = ("a", 16, 1.0), ("a", 4096, 128.0), ("b", 4096, 256.0)
TIMES = {
    A: {SMALL: 1.0, LARGE: 2.0, NEVER: 1.5},
    B: {SMALL: 12.0, LARGE: 10.0, NEVER: 11.0},
    C: {SMALL: 30.0, LARGE: 20.0},
}


def test_the_grid_is_the_seeds():
    assert math.prod(map(len, sweep.GRID.values())) == 144
    assert sweep.grid("") == sweep.GRID
    assert sweep.grid("m=16,32;w=4") == sweep.GRID | {"block_m": (16, 32), "num_warps": (4,)}


@pytest.mark.parametrize("text", ["x=1", "m=", "m16", "m=16,a"])
def test_a_grid_that_is_none(text):
    with pytest.raises(ValueError, match="but should read m=16,32;n=64"):
        sweep.grid(text)


def test_tiles_that_do_not_fit_are_left_out():
    whole = {"block_m": (128, 256), "block_n": (128,), "block_kb": (64, 128), "num_warps": (8,), "num_stages": (2, 4)}
    everywhere = set(sweep.tiles(H200, VARIANTS[DEFAULT], whole))
    small = set(sweep.tiles(RTX_4090, VARIANTS[DEFAULT], whole))
    assert small < everywhere and Tile(256, 128, 128, 8, 4) not in everywhere
    assert all(tile.num_stages == 2 for tile in small)
    pair = set(sweep.tiles(H200, VARIANTS["prefill_w4a16_pair"], {name: (16,) for name in sweep.GRID}))
    assert pair == set()  # two dots have half of a step's K each, so a step of 16 bytes is too small


def test_losses_are_against_the_best_of_each_point():
    assert sweep.best(TIMES) == {A: SMALL, B: LARGE, C: LARGE}
    found = sweep.losses(TIMES)
    assert list(found) == [SMALL, LARGE]  # NEVER has no time at C
    assert found[SMALL] == Loss(pytest.approx((0 + 0.2 + 0.5) / 3), pytest.approx(0.5))
    assert found[LARGE] == Loss(pytest.approx(1 / 3), pytest.approx(1.0))
    assert str(Loss(0.024, 0.9)) == "+2.4% (+90%)"


def test_the_entry_has_a_step_where_the_best_changes():
    entry = sweep.suggest(TIMES)
    assert entry == ((round(math.sqrt(128)), LARGE), (0, SMALL))
    assert sweep.of_entry(TIMES, entry) == Loss(0, 0)
    assert sweep.entry_text(entry).startswith("((11, Tile(block_m=128,")


def test_a_step_must_be_worth_its_place():
    nearly = {A: {SMALL: 1.0, LARGE: 1.005}, B: {SMALL: 10.05, LARGE: 10.0}, C: {SMALL: 20.0, LARGE: 20.1}}
    (step,) = sweep.suggest(nearly)
    assert step[0] == 0 and sweep.of_entry(nearly, (step,)).largest < 0.006


def test_steps_close_to_each_other_stay_apart():
    near = {("a", 1, 5.0): {SMALL: 1.0, LARGE: 2.0}, ("a", 2, 5.2): {SMALL: 2.0, LARGE: 1.0}}
    assert sweep.of_entry(near, sweep.suggest(near)) == Loss(0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_no_entry_of_one_or_two_steps_beats_the_suggested(seed):
    draw, tiles = random.Random(seed), (SMALL, LARGE, NEVER)
    points = [("a", 2**power, float(2**power)) for power in range(5)]
    times = {point: {tile: draw.uniform(1, 2) for tile in tiles} for point in points}

    def cost(entry):
        total = sum(
            math.log(times[key][next(tile for least, tile in entry if key[2] >= least)] / min(times[key].values()))
            for key in points
        )
        return total + sweep.STEP_COST * len(points) * (len(entry) - 1)

    others = [((0, tile),) for tile in tiles]
    others += [((1.5 * 2**p, high), (0, low)) for p in range(4) for high in tiles for low in tiles]
    assert cost(sweep.suggest(times)) <= min(map(cost, others)) + 1e-12


def test_a_sweep_names_the_tile_that_was_fastest(capsys, tmp_path):
    """Four tiles beside the plan, which each few of them is timed with; the third is made the fastest."""
    costs = {0: 1.0, 1: 1.2, 2: 1.1, 3: 0.8, 4: 1.3}
    timer = FakeTimer(lambda place, turn: costs[place] * (1 + turn / 5000))
    arguments = ["--shape", "2x1x32x16", "--tokens", "2", "--sweep", "--kernel", "prefill", "--stage", "gate_up"]
    arguments += ["--tiles", "m=16,32;n=32;kb=16;w=4;s=2,3", "--artifacts", str(tmp_path)]
    assert main(arguments, host(timer)) == 0
    said = capsys.readouterr().out
    assert "2x1x32x16 T = 2 (1 tokens per expert): @m32,n32,kb16,w4,s2" in said and "planned +25.0%" in said
    assert "as planned: +25.0% (+25%)" in said
    assert "suggested for kernels/tuning.py, loss +0.0% (+0%):" in said
    assert "((0, Tile(block_m=32, block_n=32, block_kb=16, num_warps=4, num_stages=2)),)" in said
    assert len((tmp_path / "bench.jsonl").read_text().splitlines()) == 4


def test_no_tile_that_is_wrong_somewhere_is_suggested():
    times = {A: {SMALL: 1.0}, B: {LARGE: 1.0}}
    assert sweep_run.lines(times, {A: 1.0, B: 1.0})[-1] == "no tile was right at every point, so that none is suggested"
    assert sweep_run.lines({A: {}}, {A: 1.0}) == ["no tile was right anywhere"]


def test_a_card_that_slows_down_between_tiles_changes_no_rank(monkeypatch):
    """Two few of two tiles: the second few is timed on a card that is half as fast."""
    monkeypatch.setattr(sweep_run, "AT_ONCE", 2)
    costs, state = [[1.0, 1.2, 1.1], [1.0, 0.9, 1.3]], {"few": -1}

    class Slowing(FakeTimer):
        def capture(self, function):
            self.captured = getattr(self, "captured", 0) + 1
            if self.captured > 3:  # beyond the yardsticks and the plan
                state["few"] = (self.captured - 4) // 2
            return super().capture(function)

    timer = Slowing(lambda place, turn: 1.0 if state["few"] < 0 else costs[state["few"]][place] * (1 + state["few"]))
    arguments = ["--shape", "2x1x32x16", "--tokens", "2", "--sweep", "--kernel", "prefill", "--stage", "gate_up"]
    lines = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: lines.extend(map(str, words)))
    assert main([*arguments, "--tiles", "m=16,32;n=32;kb=16;w=4;s=2,3"], host(timer)) == 0
    assert any("@m32,n32,kb16,w4,s2" in line and "planned +11.1%" in line for line in lines)
