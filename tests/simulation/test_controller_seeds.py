"""Several controllers in one cluster: killed, standing still for longer than their session lasts, cut off.

Besides what every seed is judged by: work passes to another controller only from one that is gone, ends once, by its
owner (`checks/work_journal.py`), and nothing that was begun is left when all is quiet (`checks/controller.py`).
"""

from __future__ import annotations

import pytest

from penstock_simulation.mutations.peers import CONTROLLERS
from penstock_simulation.runner import run


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 6))])
def test_work_of_several_controllers_is_done_once_by_one_that_is_alive(seed: int) -> None:
    assert run(seed, CONTROLLERS).violations == ()
