"""The state of the GPU around a block: a block in which the clock moved is measured again."""

import pytest

from mktune.errors import CandidateError
from mktune.measure.session import Gauges, both, clock_moved, drifted, smallest_step, steady
from mktune.trial import Status


class FakeGpu:
    """A clock that follows a list of readings; every block takes as long as the clock says."""

    def __init__(self, *clocks):
        self._clocks = list(clocks)
        self.blocks = 0

    def read(self):
        return {"sm_mhz": float(self._clocks.pop(0)), "power_w": 300.0}

    def block(self):
        self.blocks += 1
        return f"block {self.blocks}"


def test_a_block_under_a_steady_clock_is_kept_with_its_state():
    gpu = FakeGpu(1980, 1965)
    assert steady(gpu.block, gpu.read) == (
        "block 1",
        {"power_w_after": 300.0, "power_w_before": 300.0, "sm_mhz_after": 1965.0, "sm_mhz_before": 1980.0},
    )


def test_a_block_in_which_the_clock_moved_is_thrown_away_and_repeated():
    gpu = FakeGpu(1200, 1980, 1980, 1980)
    result, state = steady(gpu.block, gpu.read)
    assert result == "block 2"
    assert state["sm_mhz_before"] == state["sm_mhz_after"] == 1980.0


def test_a_clock_that_never_stays_makes_the_trial_noisy():
    gpu = FakeGpu(*[1200, 1980] * 3)
    with pytest.raises(CandidateError, match="1200 to 1980 MHz") as caught:
        steady(gpu.block, gpu.read, tries=3)
    assert caught.value.status == Status.NOISY
    assert gpu.blocks == 3


def test_a_speed_that_changes_at_a_steady_clock_is_seen_in_the_samples():
    early, late = [12.3, 12.4] * 6, [13.4, 13.5] * 6
    assert drifted(early + late)
    assert not drifted(early + early)
    assert not drifted([12.3] * 4 + [13.4] * 4)  # too few to tell
    blocks = iter([early + late, late + late])
    result, _ = steady(lambda: next(blocks), dict, drifted)
    assert result == late + late
    with pytest.raises(CandidateError, match="no clock to read"):
        steady(lambda: early + late, dict, drifted)


def test_where_nothing_can_be_read_measuring_goes_on():
    assert Gauges("GPU-00000000-0000-0000-0000-000000000000").read() == {}
    assert steady(lambda: 1, dict) == (1, {})
    assert not clock_moved({}, {"sm_mhz": 5.0})


def test_states_are_named_by_when_they_were_read():
    assert both({"sm_mhz": 1.0}, {"sm_mhz": 2.0}) == {"sm_mhz_after": 2.0, "sm_mhz_before": 1.0}


def test_smallest_step_between_readings():
    assert smallest_step([5.0, 1.0, 2.5, 1.0]) == 1.5
    assert smallest_step([3.0, 3.0]) == 0.0
