-- Version 3: bundles on drives.
-- Where a bundle was imported; the authority on whether it was.
CREATE TABLE imported_bundles (
    spoke_id        TEXT NOT NULL,
    bundle_id       TEXT NOT NULL,
    import_no       INTEGER NOT NULL,     -- grows with each import
    label           TEXT,
    created_at      INTEGER NOT NULL,
    imported_at     INTEGER NOT NULL,
    node_id         INTEGER NOT NULL,
    files           INTEGER NOT NULL,
    bytes           INTEGER NOT NULL,
    committed       INTEGER NOT NULL,
    already_present INTEGER NOT NULL,
    conflicts       INTEGER NOT NULL,
    refused         INTEGER NOT NULL,
    removed         INTEGER NOT NULL,
    PRIMARY KEY (spoke_id, bundle_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX imported_in_order ON imported_bundles (spoke_id, import_no DESC);

-- Which node imports a bundle now; a later number fences an earlier one.
CREATE TABLE import_claims (
    number     INTEGER PRIMARY KEY,
    spoke_id   TEXT NOT NULL,
    bundle_id  TEXT NOT NULL,
    node_id    INTEGER NOT NULL,
    start_no   INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    renewals   INTEGER NOT NULL DEFAULT 0,
    UNIQUE (spoke_id, bundle_id)
) STRICT;

-- Bundles that a spoke said were on drives under way, as it said last.
CREATE TABLE in_transit (
    spoke_id   TEXT NOT NULL,
    bundle_id  TEXT NOT NULL,
    label      TEXT,
    created_at INTEGER NOT NULL,
    series     TEXT NOT NULL,
    numbers    TEXT NOT NULL,             -- ranges, as JSON
    stated_at  INTEGER NOT NULL,
    PRIMARY KEY (spoke_id, bundle_id)
) STRICT, WITHOUT ROWID;
