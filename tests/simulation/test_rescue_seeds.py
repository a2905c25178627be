"""Machines are lost at any moment, and what long-term storage has then is enough for a store: see `checks.rescues`.

Containers write images. Copies of long-term storage are taken at random moments, faults included, and stores are
recovered from them. These have all that was flushed, byte for byte, nothing that was never written, and work. In the
end all is flushed, every machine is lost, and the whole cluster resumes from what was recovered.
"""

from __future__ import annotations

import pytest

from penstock_simulation.profiles import OBJECT_RESCUES, RESCUES
from penstock_simulation.runner import run
from penstock_simulation.workloads.profile import Profile


@pytest.mark.parametrize(("profile", "seed"), [(RESCUES, 1), (OBJECT_RESCUES, 10)], ids=["directory", "bucket"])
def test_flushed_data_is_recovered_after_a_loss_of_the_machines_at_any_time(profile: Profile, seed: int) -> None:
    outcome = run(seed, profile.of_length(20.0))
    assert outcome.violations == ()
    assert outcome.counts["stores recovered"] > 1
    assert outcome.counts["flushes"] > 0
