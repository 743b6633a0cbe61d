-- Version 3: imports of bundles from drives.
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
