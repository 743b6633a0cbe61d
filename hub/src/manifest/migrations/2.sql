-- Version 2: what footers say, gathered per measurement.
CREATE TABLE measurement_schemas (
    database        TEXT NOT NULL,
    measurement     TEXT NOT NULL,
    schema_id       BLOB NOT NULL,
    files           INTEGER NOT NULL,
    rows            INTEGER NOT NULL,
    first_partition INTEGER,
    last_partition  INTEGER,
    PRIMARY KEY (database, measurement, schema_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX files_undescribed ON files (origin_node, file_id)
    WHERE state = 'held' AND rows IS NULL AND unread IS NULL;
CREATE INDEX files_unread ON files (database, measurement) WHERE unread IS NOT NULL;
CREATE INDEX files_by_number ON files (namespace, series, seq);
