-- Version 2: files that arrive in pieces.
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
