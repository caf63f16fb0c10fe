"""How the ledger's table is made, protected, marked and kept small: what Delta is asked to do."""

from collections.abc import Iterable

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema

from jobs.lake.entries import COLUMNS

ONE_TRY = CommitProperties(max_commit_retries=0)
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

NAME, RESTORED = "ledger", "restored ledger"  # the table's name says whether it may be spent from
PROTECTION = {"delta.appendOnly": "true"}
UPKEEP = {
    "delta.dataSkippingNumIndexedCols": "1",  # statistics of position alone
    # longer than anybody reads or writes, and short: what is kept makes each checkpoint larger
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 6 hours",
}
CONSTRAINTS = {
    "amounts_are_not_negative": "units >= 0 AND calls >= 0",
    "entries_are_numbered": "entry_no >= 1 AND position >= 0",
}


def create(location: str, *, restored: bool) -> DeltaTable:
    """Make the table, or go on where another process has stopped; marked from its first commit."""
    table = DeltaTable.create(
        location,
        Schema.from_arrow(COLUMNS),
        mode="ignore",
        partition_by=["segment"],
        name=RESTORED if restored else NAME,
        description="Append-only; every balance is folded from these entries",
        configuration=PROTECTION | UPKEEP,
    )
    for name, rule in CONSTRAINTS.items():
        if f"delta.constraints.{name}" not in table.metadata().configuration:
            table.alter.add_constraint({name: rule})
    return table


def is_being_made(table: DeltaTable) -> bool:
    """Whether the table is not protected by all its rules yet."""
    return table.version() < len(CONSTRAINTS)


def is_marked(table: DeltaTable) -> bool:
    """Whether the table is marked as restored."""
    return bool(table.metadata().name == RESTORED)


def mark(table: DeltaTable, *, restored: bool) -> None:
    """Mark the table as restored, or as complete again."""
    if is_marked(table) != restored:
        table.alter.set_table_name(RESTORED if restored else NAME)


def protection_gaps(table: DeltaTable) -> list[str]:
    """Say by which weakened settings the table's rows could be changed."""
    configuration = table.metadata().configuration
    rules = {f"delta.constraints.{name}": rule for name, rule in CONSTRAINTS.items()}
    return [
        f"{name} is {configuration.get(name)!r} instead of {value!r}"
        for name, value in (PROTECTION | rules).items()
        if configuration.get(name) != value
    ]


def compact(table: DeltaTable, segments: Iterable[int]) -> None:
    """Put the small files of some segments together, if nobody writes meanwhile."""
    table.optimize.compact(
        partition_filters=[("segment", "in", [str(segment) for segment in segments])],
        commit_properties=ONE_TRY,
        post_commithook_properties=NO_HOOKS,
    )


def remove_old_files(table: DeltaTable) -> None:
    """Remove log and data files that nobody reads any more, those of failed commits too.

    Of a reader or writer that began within the retention everything stays.
    """
    table.cleanup_metadata()
    table.vacuum(
        dry_run=False, full=True, commit_properties=ONE_TRY, post_commithook_properties=NO_HOOKS
    )
