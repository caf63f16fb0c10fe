"""Who learned how much about which table, when, and what is left: SQL over the ledger's entries.

The text runs unchanged in DataFusion (`deltalake.QueryBuilder`) and in Spark, on anything named
`ledger` that has the ledger's columns. It shares no code with the fold in `jobs.lake.balances`, so
that each can be held against the other.
"""

from collections.abc import Callable

import pyarrow as pa

LEARNED = """
SELECT a.analyst, a.dataset, a.period_start, a.region, a.run_id, a.recorded_at AS allocated_at,
       r.recorded_at AS published_at, r.label,
       COALESCE(e.kind, 'open') AS ended_by, e.reason,
       a.units AS reserved_units, a.calls AS reserved_calls,
       CASE e.kind WHEN 'settle' THEN e.units WHEN 'give_back' THEN 0 ELSE a.units END
           AS charged_units,
       CASE e.kind WHEN 'settle' THEN e.calls WHEN 'give_back' THEN 0 ELSE a.calls END
           AS charged_calls,
       a.claim_id, a.details
FROM ledger a
LEFT JOIN ledger r ON r.kind = 'release' AND r.claim_id = a.claim_id
LEFT JOIN ledger e ON e.kind IN ('settle', 'expire', 'give_back') AND e.claim_id = a.claim_id
WHERE a.kind = 'allocate'
"""

LEFT = f"""
WITH learned AS ({LEARNED}),
said AS (
    SELECT analyst, dataset, period_start, period_end, units, calls, ROW_NUMBER() OVER (
        PARTITION BY analyst, dataset, period_start ORDER BY position DESC) AS age
    FROM ledger WHERE kind IN ('open_account', 'override')
),
used AS (
    SELECT analyst, dataset, period_start, COUNT(*) AS claims,
           SUM(charged_units) AS units, SUM(charged_calls) AS calls,
           MAX(published_at) AS last_published_at
    FROM learned GROUP BY analyst, dataset, period_start
)
SELECT s.analyst, s.dataset, s.period_start, s.period_end, COALESCE(u.claims, 0) AS claims,
       u.last_published_at, s.units AS allowed_units, s.calls AS allowed_calls,
       COALESCE(u.units, 0) AS used_units, COALESCE(u.calls, 0) AS used_calls,
       GREATEST(s.units - COALESCE(u.units, 0), 0) AS units_left,
       GREATEST(s.calls - COALESCE(u.calls, 0), 0) AS calls_left
FROM said s
LEFT JOIN used u
    ON u.analyst = s.analyst AND u.dataset = s.dataset AND u.period_start = s.period_start
WHERE s.age = 1
"""  # noqa: S608 (made of our own text)


def learned(query: Callable[[str], pa.Table]) -> pa.Table:
    """List all claims, oldest first: who asked what of which table, when, and at what charge.

    Parameters
    ----------
    query : callable
        Answers SQL over the table `ledger`, as `EntryLog.query` does.
    """
    return query(f"{LEARNED} ORDER BY allocated_at, claim_id")


def left(query: Callable[[str], pa.Table]) -> pa.Table:
    """List all accounts with allowance, use and rest; open claims count with their reserves."""
    return query(f"{LEFT} ORDER BY analyst, dataset, period_start")
