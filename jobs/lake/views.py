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
shares AS (
    SELECT DISTINCT analyst, dataset, period_start, region FROM ledger
    WHERE kind = 'open_account' AND details LIKE '%"escrow":true%'
),
said AS (
    SELECT l.*, COALESCE(s.region, '') AS share
    FROM ledger l LEFT JOIN shares s ON s.analyst = l.analyst AND s.dataset = l.dataset
        AND s.period_start = l.period_start AND s.region = l.region
    WHERE l.kind IN ('open_account', 'override', 'debit', 'credit')
),
allowed AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY analyst, dataset, period_start, share
        ORDER BY kind DESC, recorded_at DESC, region DESC, entry_no DESC) AS age
    FROM (
        SELECT kind, analyst, dataset, period_start, share, recorded_at, region, entry_no,
               CASE kind WHEN 'override' THEN units ELSE MIN(units) OVER opening END AS units,
               CASE kind WHEN 'override' THEN calls ELSE MIN(calls) OVER opening END AS calls
        FROM said WHERE kind IN ('open_account', 'override')
        WINDOW opening AS (PARTITION BY analyst, dataset, period_start, share, kind)
    ) stated
),
moved AS (
    SELECT a.analyst, a.dataset, a.period_start, a.share,
           SUM(CASE m.kind WHEN 'credit' THEN m.units ELSE -m.units END) AS units,
           SUM(CASE m.kind WHEN 'credit' THEN m.calls ELSE -m.calls END) AS calls
    FROM allowed a JOIN said m ON m.analyst = a.analyst AND m.dataset = a.dataset
        AND m.period_start = a.period_start AND m.share = a.share
        AND m.kind IN ('debit', 'credit') AND m.entry_no > a.entry_no
    WHERE a.age = 1
    GROUP BY a.analyst, a.dataset, a.period_start, a.share
),
used AS (
    SELECT c.analyst, c.dataset, c.period_start, COALESCE(s.region, '') AS share,
           COUNT(*) AS claims, SUM(c.charged_units) AS units, SUM(c.charged_calls) AS calls,
           MAX(c.published_at) AS last_published_at
    FROM learned c LEFT JOIN shares s ON s.analyst = c.analyst AND s.dataset = c.dataset
        AND s.period_start = c.period_start AND s.region = c.region
    GROUP BY c.analyst, c.dataset, c.period_start, COALESCE(s.region, '')
),
summed AS (
    SELECT a.analyst, a.dataset, a.period_start, a.share, COALESCE(u.claims, 0) AS claims,
           u.last_published_at,
           a.units + COALESCE(m.units, 0) AS allowed_units,
           a.calls + COALESCE(m.calls, 0) AS allowed_calls,
           COALESCE(u.units, 0) AS used_units, COALESCE(u.calls, 0) AS used_calls
    FROM allowed a
    LEFT JOIN moved m ON m.analyst = a.analyst AND m.dataset = a.dataset
        AND m.period_start = a.period_start AND m.share = a.share
    LEFT JOIN used u ON u.analyst = a.analyst AND u.dataset = a.dataset
        AND u.period_start = a.period_start AND u.share = a.share
    WHERE a.age = 1
)
SELECT *, GREATEST(allowed_units - used_units, 0) AS units_left,
       GREATEST(allowed_calls - used_calls, 0) AS calls_left
FROM summed
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
    """List all accounts with allowance, use and rest; open claims count with their reserves.

    One row for what an account's regions have in common (an empty `share`), and one a region with a
    share of its own.
    """
    return query(f"{LEFT} ORDER BY analyst, dataset, period_start, share")
