"""How ledgers of several regions become one: the union of their entries, by id.

Every region writes its own chain into its own table, and receives copies of the others' entries.
Entries are never changed and their ids are their own, so the union is the same in any order and
after any repetition. Copies are taken in the order in which the other table holds them: it received
them after all that they depend on, and so does the receiver.

What the entries of several regions add up to must not depend on the order in which they arrive:

- A claim belongs to the region that granted it. Only that region publishes and closes it, so its
  entries stand in one chain. A run id that two regions used at the same time is two claims, and
  each is charged; a region that can see another's claim grants no second one for its run id.
- What is used of an account or block is the sum over the claims of all regions.
- An account opened in several regions has the smaller of the allowances. Of several overrides the
  latest holds, by its time, then by its region and number there. The same for a block's capacity.
- In mode "escrow" every region has a share of its own, which it alone overrides, spends and sends.
  So no share is overspent, and neither is their sum, whoever is out of reach. What was sent leaves
  one share with the sender's entry and arrives in the other with the receiver's.
"""

from collections.abc import Iterable, Sequence

from dp_udfs.errors import LedgerConflictError
from jobs.lake.entries import Entry


def lacking(mine: Iterable[Entry], theirs: Sequence[Entry]) -> list[Entry]:
    """List the entries of another table that this one lacks, in the order of the other.

    Raises
    ------
    LedgerConflictError
        If one id stands for two entries, or a region has written two entries under one number: it
        was restored, and wrote before it had copied what it had forgotten.
    """
    by_id = {entry.entry_id: entry for entry in mine}
    by_place = {(entry.region, entry.entry_no): entry for entry in by_id.values()}
    missing = []
    for entry in theirs:
        place = entry.region, entry.entry_no
        same = by_id.get(entry.entry_id) or by_place.get(place)
        if same is None:
            missing.append(entry)
            by_id[entry.entry_id] = by_place[place] = entry
        elif same != entry:
            raise LedgerConflictError(
                f"entry {entry.entry_no} of region {entry.region} is two entries, "
                f"{same.entry_id} ({same.kind}) and {entry.entry_id} ({entry.kind}): one was "
                f"changed, or the region wrote after a restore without replicating first"
            )
    return missing
