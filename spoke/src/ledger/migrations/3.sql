-- Version 3: priorities, files that are gone, passes per hub, bodies that a way refuses.
ALTER TABLE hubs ADD COLUMN rows_checked INTEGER;
ALTER TABLE files ADD COLUMN class INTEGER NOT NULL DEFAULT 100;
ALTER TABLE files ADD COLUMN gone_since INTEGER;
ALTER TABLE passes ADD COLUMN hub_id TEXT;

DROP INDEX files_pending;
CREATE INDEX files_pending ON files (hub_id, attempts, class, partition_ms DESC, path)
    WHERE state = 'pending';

CREATE TABLE bodies (
    address   TEXT PRIMARY KEY,
    max_bytes INTEGER NOT NULL,
    since     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
