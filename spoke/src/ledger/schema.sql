-- ledger.db: what a spoke knows of its files, per hub. WAL, synchronous FULL.
-- Times are milliseconds since 1970 UTC unless the name says ns; digests are 32 bytes.

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

CREATE TABLE receipts (
    receipt_id  INTEGER PRIMARY KEY,
    hub_id      TEXT NOT NULL,
    answers     TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    ack         BLOB NOT NULL,
    sig         BLOB NOT NULL,
    outcomes    BLOB NOT NULL
) STRICT;

CREATE TABLE files (
    hub_id       TEXT NOT NULL,
    path         TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN -- none is in_flight since version 5
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
CREATE INDEX files_pending ON files (hub_id, attempts, class, partition_ms DESC, path)
    WHERE state = 'pending';
CREATE INDEX files_open ON files (hub_id, state) WHERE state <> 'synced';

-- Numbers of a series that will never come, and why.
CREATE TABLE voids (
    hub_id TEXT NOT NULL,
    series TEXT NOT NULL,
    seq    INTEGER NOT NULL,
    reason TEXT NOT NULL,
    told   INTEGER NOT NULL DEFAULT 0,    -- the hub has recorded it
    PRIMARY KEY (hub_id, series, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX voids_untold ON voids (hub_id, series, seq) WHERE told = 0;

-- What each pass came to; the last 1,000 are kept.
CREATE TABLE passes (
    pass_id    INTEGER PRIMARY KEY,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,               -- none: it runs, or it was ended from outside
    counts     TEXT NOT NULL DEFAULT '{}',
    exit_code  INTEGER,
    reason     TEXT,
    hub_id     TEXT
) STRICT;

-- Bytes of bodies by day of UTC, for budgets.
CREATE TABLE spent (
    day   TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Most bytes that went in one body to an address, where something on the way refuses larger ones.
CREATE TABLE bodies (
    address   TEXT PRIMARY KEY,
    max_bytes INTEGER NOT NULL,
    since     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Bundles on drives.
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

-- Bundles that go over the wire now. Their files are pending: only a receipt moves them.
CREATE TABLE under_way (
    bundle_id TEXT PRIMARY KEY,
    hub_id    TEXT NOT NULL,
    files     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
