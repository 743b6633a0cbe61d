-- node.db: what this node alone knows. WAL, synchronous FULL.

CREATE TABLE state (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Whole, synced files in staging that were answered `Stored`.
CREATE TABLE staged (
    stage_no   INTEGER PRIMARY KEY,
    path       TEXT NOT NULL,
    sha256     BLOB NOT NULL,
    size_bytes INTEGER NOT NULL,
    staged_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX staged_by_path ON staged (path);

-- What this node received and made visible.
CREATE TABLE sync_received (
    path        TEXT PRIMARY KEY,
    sha256      BLOB NOT NULL,
    size_bytes  INTEGER NOT NULL,
    promoted_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Files that arrive in pieces; their bytes lie in staging as NAME.partial.
CREATE TABLE uploads (
    spoke_id   TEXT NOT NULL,
    path       TEXT NOT NULL,
    sha256     BLOB NOT NULL,
    size_bytes INTEGER NOT NULL,
    synced     INTEGER NOT NULL,      -- bytes from the start that are on disk for good
    bundle_id  TEXT,                  -- absent until a bundle of one names it
    bundle     BLOB,                  -- that bundle and its entry
    touched_at INTEGER NOT NULL,
    PRIMARY KEY (spoke_id, path, sha256),
    UNIQUE (spoke_id, bundle_id)
) STRICT, WITHOUT ROWID;

-- Bundles that this node imported to their end.
CREATE TABLE sync_imported_bundles (
    spoke_id        TEXT NOT NULL,
    bundle_id       TEXT NOT NULL,
    label           TEXT,
    imported_at     INTEGER NOT NULL,
    files           INTEGER NOT NULL,
    bytes           INTEGER NOT NULL,
    committed       INTEGER NOT NULL,
    already_present INTEGER NOT NULL,
    conflicts       INTEGER NOT NULL,
    PRIMARY KEY (spoke_id, bundle_id)
) STRICT, WITHOUT ROWID;

-- Files of imports that are not at their end: verified, and in staging unless the hub has them.
CREATE TABLE import_files (
    spoke_id    TEXT NOT NULL,
    bundle_id   TEXT NOT NULL,
    path        TEXT NOT NULL,
    sha256      BLOB NOT NULL,
    size_bytes  INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    modified_at INTEGER NOT NULL,
    stage_no    INTEGER,              -- absent: the manifest knew the path, or a rule refused it
    code        TEXT,                 -- the rule
    detail      TEXT,
    noted_at    INTEGER NOT NULL,
    claim       INTEGER NOT NULL,     -- of the import that noted it last
    PRIMARY KEY (spoke_id, bundle_id, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX import_files_staged ON import_files (stage_no) WHERE stage_no IS NOT NULL;
