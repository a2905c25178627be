"""CPU time of `plan`: 1 000 containers on 100 stores, in the cases that cost most. Prints JSON.

python bench/plan.py
"""

from __future__ import annotations

import json
import random
import statistics
import time

from penstock.model.assignment_plan import UNASSIGNED, LiveStore, Loads, plan
from penstock.model.move_settings import MoveSettings

CONTAINERS = 1000
STORES = 100
ROUNDS = 20


def main() -> None:
    """Measure, and print milliseconds."""
    rng = random.Random(1)
    names = [f"store-{number}" for number in range(STORES)]
    zones = [f"zone-{number % 3}" for number in range(STORES)]
    stores = {name: LiveStore(zone=zone) for name, zone in zip(names, zones, strict=True)}
    even = [names[number % STORES] for number in range(CONTAINERS)]
    busy = {name: rng.uniform(0.2, 0.9) for name in names}
    loads = Loads(busy, dict.fromkeys(names, 600.0), {number: rng.uniform(0, 0.25) for number in range(CONTAINERS)})
    settings = MoveSettings(at_once=CONTAINERS, per_store=CONTAINERS)
    few = {name: stores[name] for name in names[: STORES // 2]}
    cases = {
        "nothing_to_do": (even, stores, Loads(), ()),
        "all_new": ([UNASSIGNED] * CONTAINERS, stores, loads, ()),
        "one_lost": (even, {name: store for name, store in stores.items() if name != names[0]}, loads, ()),
        "half_lost": (even, few, loads, ()),
        "half_joined": ([names[number % (STORES // 2)] for number in range(CONTAINERS)], stores, loads, ()),
        "drain_ten": (even, stores, loads, names[:10]),
        "load": (even, stores, loads, ()),
    }
    results = {}
    for name, (previous, present, load, drains) in cases.items():
        taken_ms = []
        for _ in range(ROUNDS):
            began_s = time.process_time()
            _, moves = plan(previous, present, load, drains, settings)
            taken_ms.append(1000 * (time.process_time() - began_s))
        results[name] = {
            "moves": len(moves),
            "median_ms": round(statistics.median(taken_ms), 2),
            "max_ms": round(max(taken_ms), 2),
        }
    print(json.dumps({"containers": CONTAINERS, "stores": STORES, "rounds": ROUNDS, "cases": results}, indent=2))


if __name__ == "__main__":
    main()
