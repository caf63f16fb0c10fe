"""Cap what one user adds to a question: cohorts first, then elements.

Rows are engagements in normal form: `user`, `cohort` (text) and `element`; rows without a user
never count. What is kept of a user is chosen among that user's own rows by the order of a salted
hash, so it does not depend on anybody else, on the order of rows or on partitions, and a user's
rows can only be added to the counts or taken away as a whole.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dp_udfs import checks


def bound_contributions(
    engagements: DataFrame,
    *,
    cohorts_per_user: int | None,
    l0: int | None,
    salt: str,
    cohorts: Sequence[str] = (),
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
    cohorts : sequence of str
        The public list, where only its cohorts are counted: a cap on them is then cheaper, to one
        of them by far.

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
    The hash is XXH64 of the user and then of the value's code, which is XXH64 of the value. For one
    user it maps the 64 bits of the code one to one, so values of different codes never tie.

    Privacy: a user's kept rows are a function of that user's rows alone. So adding or removing a
    user moves counts in one direction, of at most `l0` elements in at most `cohorts_per_user`
    cohorts. This does not hold for units smaller than the user (an event, a day).
    """
    caps = {"cohorts_per_user": cohorts_per_user, "l0": l0}
    checks.positive_integers(**{name: cap for name, cap in caps.items() if cap is not None})
    rows = engagements.where(F.col("user").isNotNull())
    if any(cap is not None for cap in caps.values()):
        rows = rows.repartition("user")  # once for both caps, before any sort
    if cohorts_per_user is not None:
        hashed = _hash("cohort", salt)
        unique = bool(cohorts) and _have_unique_codes(engagements.sparkSession, cohorts, salt)
        if unique and cohorts_per_user == 1:  # the least needs no sort of a user's rows
            least = F.min(hashed).over(Window.partitionBy("user"))
            rows = rows.withColumn("least", least).where(hashed == F.col("least"))
        else:
            place = _place(hashed, *([] if unique else ["cohort"]))
            rows = rows.withColumn("place", place).where(F.col("place") <= cohorts_per_user)
    if l0 is not None:
        place = _place(_hash("element", salt), "element")
        rows = rows.withColumn("place", place).where(F.col("place") <= l0)
    return rows.select("user", "cohort", "element")


def _place(*order: Column | str) -> Column:
    """Place of a row's value among its user's distinct values."""
    return F.dense_rank().over(Window.partitionBy("user").orderBy(*order))


def _hash(column: str, salt: str) -> Column:
    return F.xxhash64("user", _code(column, salt))


def _code(column: str, salt: str) -> Column:
    return F.xxhash64(F.lit(salt), F.lit(column), column)


def _have_unique_codes(spark: SparkSession, cohorts: Sequence[str], salt: str) -> bool:
    listed = spark.createDataFrame(pa.table({"cohort": pa.array(cohorts, pa.string())}))
    return len(set(listed.select(_code("cohort", salt)).collect())) == len(cohorts)
