"""Cap what one user adds to a question: cohorts first, then elements.

Rows are engagements in normal form: `user`, `cohort` (text) and `element`; rows without a user
never count. What is kept of a user is chosen among that user's own rows by the order of a salted
hash, so it does not depend on anybody else, on the order of rows or on partitions, and a user's
rows can only be added to the counts or taken away as a whole.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dp_udfs import checks


def bound_contributions(
    engagements: DataFrame, *, cohorts_per_user: int | None, l0: int | None, salt: str
) -> DataFrame:
    """Keep at most `cohorts_per_user` cohorts and then `l0` elements of each user.

    Parameters
    ----------
    engagements : DataFrame of user, cohort, element
        All rows of the question: all cohorts, the whole window, after filters and consent. NULL is
        an element like any other.
    cohorts_per_user : int or None
        Most cohorts that one user counts in; None for no cap.
    l0 : int or None
        Most distinct elements that one user counts for, over all cohorts together (a kept element
        counts in every kept cohort it was seen in); None for no cap.
    salt : str
        Public salt of the dataset. It stands in the query plan, so it must not be a secret.

    Returns
    -------
    DataFrame of user, cohort, element
        A subset of the rows: all that have a user, where no user exceeds a cap.

    Raises
    ------
    InvalidParameterError
        If a cap is below 1.

    Notes
    -----
    Privacy: a user's kept rows are a function of that user's rows alone. So adding or removing a
    user moves counts in one direction, of at most `l0` elements in at most `cohorts_per_user`
    cohorts. This does not hold for units smaller than the user (an event, a day).
    """
    caps = {"cohorts_per_user": cohorts_per_user, "l0": l0}
    checks.positive_integers(**{name: cap for name, cap in caps.items() if cap is not None})
    rows = engagements.where(F.col("user").isNotNull())
    if any(cap is not None for cap in caps.values()):
        rows = rows.repartition("user")  # once for both caps, before any sort
    for column, cap in (("cohort", cohorts_per_user), ("element", l0)):
        if cap is not None:
            rows = rows.withColumn("place", _place(column, salt)).where(F.col("place") <= cap)
    return rows.select("user", "cohort", "element")


def _place(column: str, salt: str) -> Column:
    """Place of a value among its user's distinct values: by salted hash, then by the value."""
    by_hash = Window.partitionBy("user").orderBy(
        F.xxhash64(F.lit(salt), F.lit(column), "user", column), column
    )
    return F.dense_rank().over(by_hash)
