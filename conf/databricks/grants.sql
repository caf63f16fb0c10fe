-- Who may do what in Unity Catalog. Run it once, as the owner of the catalog; names are examples.
--
--   discreet-jobs      service principal that runs the programs: the only writer, and the only one
--                      that reads rows of people and the secret
--   privacy-officers   raise allowances, restore, verify: they may run those jobs (permission
--                      CAN MANAGE RUN), and read the books
--   data-owners        own the rows before they are protected; they are not analysts
--   marketing, ...     one group for each analyst of the dataset files: they ask through a job that
--                      runs as discreet-jobs, and see their own answers and charges
--
-- The ledger and the released answers are written through files alone, by delta-rs: nobody gets
-- MODIFY on them, so that Spark cannot become a second writer. Whoever can read a table of the
-- schema `rows`, the secret, or the logs and the Spark UI of the jobs has no privacy barrier.

GRANT USE CATALOG ON CATALOG discreet TO `discreet-jobs`;
GRANT USE CATALOG ON CATALOG discreet TO `privacy-officers`;
GRANT USE CATALOG ON CATALOG discreet TO `data-owners`;
GRANT USE CATALOG ON CATALOG discreet TO `marketing`;
GRANT USE CATALOG ON CATALOG discreet TO `research`;

-- The books: tables over the paths in the lake's file, on an external location of their own.
GRANT READ FILES, WRITE FILES ON EXTERNAL LOCATION discreet_books TO `discreet-jobs`;
GRANT USE SCHEMA ON SCHEMA discreet.books TO `discreet-jobs`;
GRANT USE SCHEMA ON SCHEMA discreet.books TO `privacy-officers`;
GRANT SELECT ON TABLE discreet.books.ledger TO `privacy-officers`;
GRANT SELECT ON TABLE discreet.books.releases TO `privacy-officers`;
GRANT SELECT ON TABLE discreet.books.snapshots TO `privacy-officers`;

-- Rows of people: one schema for each dataset file.
GRANT USE SCHEMA ON SCHEMA discreet.rows TO `discreet-jobs`;
GRANT SELECT, MODIFY ON TABLE discreet.rows.engagements TO `discreet-jobs`;
GRANT SELECT, MODIFY ON TABLE discreet.rows.opt_outs TO `discreet-jobs`;
GRANT SELECT, MODIFY ON TABLE discreet.rows.opt_outs_purged TO `discreet-jobs`;
GRANT SELECT, MODIFY ON TABLE discreet.rows.quarantine TO `discreet-jobs`;
GRANT READ FILES, WRITE FILES ON EXTERNAL LOCATION discreet_rows TO `discreet-jobs`;
GRANT USE SCHEMA ON SCHEMA discreet.rows TO `data-owners`;
GRANT SELECT ON TABLE discreet.rows.engagements TO `data-owners`;
GRANT SELECT ON TABLE discreet.rows.quarantine TO `data-owners`;

-- What an analyst may see: answers that were published to it, and its own entries of the ledger.
CREATE OR REPLACE VIEW discreet.answers.published AS
SELECT l.analyst, l.recorded_at, r.label, r.cohort, r.rank, r.element, r.noisy_count, r.low, r.high
FROM discreet.books.releases r
JOIN discreet.books.ledger l ON l.kind = 'release' AND l.label = r.label
WHERE r.row_kind = 'element' AND is_account_group_member(l.analyst);

CREATE OR REPLACE VIEW discreet.answers.charges AS
SELECT analyst, dataset, period_start, kind, run_id, label, units, calls, reason, recorded_at
FROM discreet.books.ledger
WHERE is_account_group_member(analyst);

GRANT USE SCHEMA ON SCHEMA discreet.answers TO `marketing`;
GRANT USE SCHEMA ON SCHEMA discreet.answers TO `research`;
GRANT SELECT ON VIEW discreet.answers.published TO `marketing`;
GRANT SELECT ON VIEW discreet.answers.published TO `research`;
GRANT SELECT ON VIEW discreet.answers.charges TO `marketing`;
GRANT SELECT ON VIEW discreet.answers.charges TO `research`;

-- The secret, with the command line (a scope of its own; everybody else has no ACL on it):
--   databricks secrets create-scope discreet
--   databricks secrets put-secret discreet noise       # from `openssl rand -hex 32`
--   databricks secrets put-acl discreet discreet-jobs READ
