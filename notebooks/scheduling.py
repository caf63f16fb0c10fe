# Databricks notebook source
# MAGIC %md
# MAGIC # Who gets the privacy budget?
# MAGIC
# MAGIC A block of data has a budget that never comes back. Claims ask for parts of it: mice for a
# MAGIC hundredth, elephants for a tenth. A policy decides who is served, and there are few ways
# MAGIC to be fair and to waste nothing:
# MAGIC
# MAGIC - **first_come_first_served** serves whoever comes first. A few early elephants use a
# MAGIC   block up.
# MAGIC - **dpf_by_arrivals** opens a block by 1/N for each claim that names it, and serves the
# MAGIC   smallest dominant share first. Each of the first N claims can count on 1/N of the block.
# MAGIC - **dpf_by_time** does the same with blocks that open evenly over the time in which N
# MAGIC   claims come.
# MAGIC - **round_robin_by_arrivals, round_robin_by_time** share out what opens evenly among all
# MAGIC   that wait. Many hold a part, few all.
# MAGIC - **dpack** collects claims, and packs as many as it can into what is open, fair or not.
# MAGIC
# MAGIC Nothing real is read or spent here: these are the published workloads, drawn from a seed.

# COMMAND ----------

import sys
import time
from pathlib import Path

from dp_udfs import sweeps, workloads
from dp_udfs.sweeps import Outcome
from dp_udfs.workloads import Workload
from jobs.lake import pictures, reports

SEED = 3345
FOLDER = Path.cwd() / "pictures"
started = time.monotonic()
FOLDER.mkdir(exist_ok=True)


def compare(name: str, workload: Workload, families: list[str], ns: tuple[int, ...]) -> None:
    """Run all policies, draw the curves, and print how many each grants at each N."""
    outcomes = sweeps.sweep(workload, families, ns)
    claims = len(workload.claims)
    path = FOLDER / f"{name}.svg"
    pictures.draw(outcomes, f"{name}: {claims:,} claims on {len(workload.blocks)} blocks", path)
    print(f"\n{'=' * 100}\n{name}: {claims:,} claims, claims granted at each N\n{'=' * 100}")
    print(reports.table([curve(family, outcomes, ns) for family in families]))
    print("\nwhere each grants most: how long those waited that were granted")
    print(reports.table([best(family, outcomes) for family in families]))
    print(f"\ndrawn in {path}", flush=True)


def curve(family: str, outcomes: list[Outcome], ns: tuple[int, ...]) -> dict[str, object]:
    """Arrange one policy's grants; those of first come, first served are the same at any N."""
    granted = {outcome.n: outcome.granted for outcome in outcomes if outcome.family == family}
    return {"policy": family, **{f"N = {n:,}": granted.get(n, granted.get(None)) for n in ns}}


def best(family: str, outcomes: list[Outcome]) -> dict[str, object]:
    """Arrange the delays of one policy at its best N."""
    own = [outcome for outcome in outcomes if outcome.family == family]
    top = max(own, key=lambda outcome: outcome.granted)
    return {
        "policy": family,
        "N": top.n,
        "granted": top.granted,
        "mean": top.mean_delay,
        "half within": top.delay_of(0.5),
        "95 % within": top.delay_of(0.95),
    }


# COMMAND ----------

# MAGIC %md
# MAGIC ## One block
# MAGIC
# MAGIC How to read the left picture: further right, a block is kept for more claims. With N = 1
# MAGIC all is open at once, and dpf_by_arrivals *is* first come, first served. Then the curve
# MAGIC climbs, because elephants no longer fit into what is open and mice do, up to the plateau:
# MAGIC 100 mice, all that fit into a block. Once N is larger than the number of claims that come,
# MAGIC the last part never opens: dpf_by_arrivals falls, dpf_by_time does not, for time passes
# MAGIC anyway. Round robin falls to nothing.
# MAGIC
# MAGIC How to read the right picture: the height at time t is the share of all claims that had
# MAGIC their budget t seconds after they asked. A curve ends at the share that was granted at
# MAGIC all. What starts high served most at once; what climbs late let them wait.

# COMMAND ----------

one = workloads.single_block(SEED)
compare(
    "single-block",
    one,
    [
        "first_come_first_served",
        "dpf_by_arrivals",
        "dpf_by_time",
        "round_robin_by_arrivals",
        "round_robin_by_time",
        "dpack",
    ],
    one.ns[::2],
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Many blocks
# MAGIC
# MAGIC A new block every ten seconds; a quarter of the claims need the newest ten at once. The
# MAGIC peak is twice first come, first served. Waiting is what is paid for it, and it grows with
# MAGIC N.

# COMMAND ----------

many = workloads.multi_block(SEED, duration=100.0)
compare(
    "multi-block",
    many,
    [
        "first_come_first_served",
        "dpf_by_arrivals",
        "dpf_by_time",
        "round_robin_by_arrivals",
        "round_robin_by_time",
    ],
    (1, 50, 100, 175, 375, 750, 1500),
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Rényi accounting
# MAGIC
# MAGIC The same claims as curves over orders: a block now fits 14,514 mice rather than 100, for
# MAGIC the same (epsilon, delta). The shape is the same, with N a hundred times larger.

# COMMAND ----------

renyi = workloads.renyi_multi_block(SEED, duration=30.0)
compare(
    "renyi-multi-block",
    renyi,
    ["first_come_first_served", "dpf_by_arrivals", "dpf_by_time"],
    (145, 1_451, 7_257, 14_514),
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Packing
# MAGIC
# MAGIC Claims of very mixed size and shape. Packing weighs what a claim takes of every block at
# MAGIC the order that fits most, so it serves more than fairness where blocks open fast (small
# MAGIC N), and about as many where there is time. No claim can count on its share, and all wait
# MAGIC for the next round.

# COMMAND ----------

mixed = workloads.dpack_synthetic(SEED, claims=600, block_count=20)
compare(
    "dpack-synthetic",
    mixed,
    ["first_come_first_served", "dpf_by_arrivals", "dpf_by_time", "dpack"],
    mixed.ns[1::2],
)

# COMMAND ----------

print(f"Done in {time.monotonic() - started:.0f} s.", file=sys.stderr)
