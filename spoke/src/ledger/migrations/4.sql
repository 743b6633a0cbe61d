-- Version 4: bundles on drives.
CREATE TABLE bundles (
    bundle_id  TEXT PRIMARY KEY,
    hub_id     TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN
               ('writing', 'exported', 'acknowledged', 'reverted', 'abandoned')),
    form       TEXT NOT NULL,
    folder     TEXT NOT NULL,             -- of the drive, as it was mounted then
    label      TEXT,
    created_at INTEGER NOT NULL,          -- in the hub's time
    series     TEXT NOT NULL,
    files      INTEGER NOT NULL DEFAULT 0,
    bytes      INTEGER NOT NULL DEFAULT 0,
    seqs       TEXT NOT NULL DEFAULT '[]',-- ranges of numbers, as JSON
    header     BLOB,                      -- manifest.json and its signature, once it was sealed
    sig        BLOB,
    since      INTEGER NOT NULL           -- when it came into this state
) STRICT, WITHOUT ROWID;
CREATE INDEX files_by_bundle ON files (hub_id, bundle_id, path)
    WHERE state IN ('pending', 'exported') AND bundle_id IS NOT NULL;
