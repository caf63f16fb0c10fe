"""The rows a question is about, as three columns: user, cohort, element.

Everything here depends on single rows and on the opt-out list only: window, filters, cohort list
and consent come before any bound on a user's contributions.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.lake import tables
from jobs.lake.conditions import Test
from jobs.lake.questions import Question
from jobs.lake.settings import ALL, COHORT_SEPARATOR


def select(spark: SparkSession, question: Question) -> DataFrame:
    """Read the rows of a question from its snapshot: `user`, `cohort`, `element`, one a row."""
    table, facts = question.dataset.table, question.dataset.columns[question.element]
    rows = tables.read(spark, question.snapshot.tables["engagements"])
    date = F.col(table.event_date)
    rows = rows.where((date >= F.lit(question.start)) & (date < F.lit(question.end)))
    for clause in question.filters:
        rows = rows.where(reduce(or_, [_passes(test) for test in clause]))
    cohort = _cohort(question.cohort_columns)
    if question.cohort_columns:
        rows = rows.where(_is_listed(question))
    element = F.col(question.element)
    rows = rows.select(
        F.col(table.user_id).alias("user"),
        cohort.alias("cohort"),
        (F.explode_outer(element) if facts.many else element).alias("element"),
    )
    rows = rows.where(F.col("user").isNotNull())  # the fixed rule for rows without an id
    if not facts.keep_nulls:
        rows = rows.where(F.col("element").isNotNull())
    if question.mechanism.domain is not None:
        rows = rows.where(F.col("element").isin(list(question.mechanism.domain)))
    return _consenting(spark, rows, question).select("user", "cohort", "element")


def _passes(test: Test) -> Column:
    """One condition of a filter; NULL never passes."""
    column = F.col(test[0])
    if len(test) == 2:
        return column.isin(list(test[1])) if test[1] else F.lit(False)
    bounds = [column >= test[1]] if test[1] is not None else []
    bounds += [column <= test[2]] if test[2] is not None else []
    return reduce(and_, bounds)


def _cohort(columns: Sequence[str]) -> Column:
    """Name the public cohort of a row."""
    if not columns:
        return F.lit(ALL)
    if len(columns) == 1:
        return F.col(columns[0])
    return F.concat_ws(COHORT_SEPARATOR, *columns)


def _is_listed(question: Question) -> Column:
    """Whether every cohort column holds one of its public values (so none is NULL)."""
    columns = question.dataset.columns
    return reduce(
        and_,
        [F.col(name).isin(list(columns[name].domain)) for name in question.cohort_columns],
    )


def _consenting(spark: SparkSession, rows: DataFrame, question: Question) -> DataFrame:
    """Leave out the rows of users who opted out."""
    opt_outs = question.snapshot.tables.get("opt_outs")
    if opt_outs is None:
        return rows
    left = tables.read(spark, opt_outs).select(F.col("user_id").alias("user")).distinct()
    return rows.join(left, on="user", how="left_anti")
