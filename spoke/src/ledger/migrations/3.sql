-- Version 3: priorities, files that are gone, passes per hub, bodies that a way refuses.
ALTER TABLE hubs RENAME TO hubs_2;
CREATE TABLE hubs (
    hub_id          TEXT PRIMARY KEY,
    series          TEXT NOT NULL,
    seq_head        INTEGER NOT NULL DEFAULT 0,
    replaces        TEXT,
    hub_epoch       TEXT,
    seen_position   INTEGER NOT NULL DEFAULT 0,
    as_of           INTEGER,              -- end of the last complete scan
    clock_offset_ms INTEGER NOT NULL DEFAULT 0,
    hub_time        INTEGER,              -- the latest time that the hub signed
    last_success    INTEGER,
    rows_checked    INTEGER               -- when rows of files that are gone were last looked for
) STRICT, WITHOUT ROWID;
INSERT INTO hubs (hub_id, series, seq_head, replaces, hub_epoch, seen_position, as_of,
                  clock_offset_ms, hub_time, last_success)
SELECT hub_id, series, seq_head, replaces, hub_epoch, seen_position, as_of, clock_offset_ms,
       hub_time, last_success FROM hubs_2;
DROP TABLE hubs_2;

DROP INDEX files_pending;
DROP INDEX files_open;
ALTER TABLE files RENAME TO files_2;
CREATE TABLE files (
    hub_id       TEXT NOT NULL,
    path         TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN
                 ('pending', 'in_flight', 'exported', 'synced', 'conflict', 'failed', 'skipped',
                  'removed', 'modified', 'dismissed')),
    sha256       BLOB,
    size_bytes   INTEGER NOT NULL,
    mtime_ns     INTEGER NOT NULL,
    ctime_ns     INTEGER NOT NULL,
    inode        INTEGER NOT NULL,
    seq          INTEGER,
    partition_ms INTEGER NOT NULL,        -- start of the partition; very low when unknown
    attempts     INTEGER NOT NULL DEFAULT 0,   -- tries that failed: those with fewer go first
    mismatches   INTEGER NOT NULL DEFAULT 0,   -- deliveries of other bytes
    bundle_id    TEXT,
    receipt_id   INTEGER REFERENCES receipts (receipt_id),
    their_sha256 BLOB,
    code         TEXT,
    detail       TEXT,
    since        INTEGER NOT NULL,        -- when the row came into this state
    class        INTEGER NOT NULL DEFAULT 100, -- what is more urgent has a lower one
    gone_since   INTEGER,                 -- when the file was first found to be gone
    PRIMARY KEY (hub_id, path),
    -- Exported is not synced; only a stored receipt makes a file synced.
    CHECK (state <> 'synced' OR receipt_id IS NOT NULL),
    CHECK (state NOT IN ('pending', 'in_flight') OR (sha256 IS NOT NULL AND seq IS NOT NULL))
) STRICT, WITHOUT ROWID;
INSERT INTO files (hub_id, path, state, sha256, size_bytes, mtime_ns, ctime_ns, inode, seq,
                   partition_ms, attempts, mismatches, bundle_id, receipt_id, their_sha256, code,
                   detail, since)
SELECT hub_id, path, state, sha256, size_bytes, mtime_ns, ctime_ns, inode, seq, partition_ms,
       attempts, mismatches, bundle_id, receipt_id, their_sha256, code, detail, since FROM files_2;
DROP TABLE files_2;
CREATE INDEX files_pending ON files (hub_id, attempts, class, partition_ms DESC, path)
    WHERE state = 'pending';
CREATE INDEX files_open ON files (hub_id, state) WHERE state <> 'synced';

ALTER TABLE passes RENAME TO passes_2;
CREATE TABLE passes (
    pass_id    INTEGER PRIMARY KEY,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,               -- none: it runs, or it was ended from outside
    counts     TEXT NOT NULL DEFAULT '{}',
    exit_code  INTEGER,
    reason     TEXT,
    hub_id     TEXT
) STRICT;
INSERT INTO passes (pass_id, started_at, ended_at, counts, exit_code, reason)
SELECT pass_id, started_at, ended_at, counts, exit_code, reason FROM passes_2;
DROP TABLE passes_2;

CREATE TABLE bodies (
    address   TEXT PRIMARY KEY,
    max_bytes INTEGER NOT NULL,
    since     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
