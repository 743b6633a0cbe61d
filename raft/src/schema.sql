-- raft.db: log, vote and identity of one node. WAL, synchronous FULL.
CREATE TABLE log (
    log_index INTEGER PRIMARY KEY,
    entry     BLOB NOT NULL
) STRICT;

CREATE TABLE state (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
