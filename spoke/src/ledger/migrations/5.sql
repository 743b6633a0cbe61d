-- Version 5: what goes over the wire is noted by the bundle, and no longer in the row of each file.
CREATE TABLE under_way (
    bundle_id TEXT PRIMARY KEY,
    hub_id    TEXT NOT NULL,
    files     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

UPDATE files INDEXED BY files_open SET state = 'pending', bundle_id = NULL
    WHERE hub_id IN (SELECT hub_id FROM hubs) AND state = 'in_flight' AND state <> 'synced';
