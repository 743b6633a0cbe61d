-- Version 2: what each pass came to.
CREATE TABLE passes (
    pass_id    INTEGER PRIMARY KEY,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,               -- none: it runs, or it was ended from outside
    counts     TEXT NOT NULL DEFAULT '{}',
    exit_code  INTEGER,
    reason     TEXT
) STRICT;

-- Bytes of bodies by day of UTC, for budgets.
CREATE TABLE spent (
    day   TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
