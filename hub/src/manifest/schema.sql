-- manifest.db: the replicated state, equal on every node at one Raft position.
-- Times are milliseconds since 1970 UTC; digests are 32 bytes.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Counters that would be slow to count: position, horizon, files, bytes.
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Names of spokes (later sites and nodes): one registry, unique ignoring case.
CREATE TABLE names (
    folded TEXT PRIMARY KEY,
    name   TEXT NOT NULL,
    kind   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE nodes (
    node_id     INTEGER PRIMARY KEY,
    public_key  TEXT NOT NULL,
    added_at    INTEGER NOT NULL,
    stage_floor INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE spokes (
    spoke_id   TEXT PRIMARY KEY,
    state      TEXT NOT NULL CHECK (state IN ('announced', 'active', 'disabled', 'removed')),
    created_at INTEGER NOT NULL,
    last_seen  INTEGER,
    files      INTEGER NOT NULL DEFAULT 0,
    bytes      INTEGER NOT NULL DEFAULT 0,
    report     TEXT NOT NULL DEFAULT '{}'
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
    key_id     TEXT PRIMARY KEY,
    spoke_id   TEXT NOT NULL,
    public_key TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('active', 'retired', 'revoked')),
    added_at   INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_spoke ON keys (spoke_id);

CREATE TABLE enrollments (
    secret_hash BLOB PRIMARY KEY,
    spoke_id    TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    key_id      TEXT,
    used_at     INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    name       TEXT PRIMARY KEY,
    role       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE series (
    spoke_id    TEXT NOT NULL,
    series      TEXT NOT NULL,
    opened_at   INTEGER NOT NULL,
    seq_head    INTEGER NOT NULL,
    as_of       INTEGER,
    replaced_by TEXT,
    forked      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (spoke_id, series)
) STRICT, WITHOUT ROWID;

-- Numbers that are answered for good, as disjoint inclusive ranges.
CREATE TABLE answered (
    spoke_id TEXT NOT NULL,
    series   TEXT NOT NULL,
    lo       INTEGER NOT NULL,
    hi       INTEGER NOT NULL,
    PRIMARY KEY (spoke_id, series, lo)
) STRICT, WITHOUT ROWID;

CREATE TABLE bundles (
    bundle_id   TEXT PRIMARY KEY,
    spoke_id    TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    header      BLOB NOT NULL,
    sig         BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE files (
    file_id         INTEGER PRIMARY KEY,
    path            TEXT NOT NULL UNIQUE,     -- landed name: {namespace}/{path}
    namespace       TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('held', 'lost', 'removed', 'replaced')),
    state_by        TEXT,
    state_at        INTEGER,
    state_why       TEXT,
    sha256          BLOB NOT NULL,
    source_sha256   BLOB NOT NULL,
    size_bytes      INTEGER NOT NULL,
    kind            TEXT NOT NULL,
    origin          TEXT NOT NULL,
    spoke_id        TEXT NOT NULL,
    series          TEXT NOT NULL,
    seq             INTEGER NOT NULL,
    modified_at     INTEGER NOT NULL,
    database        TEXT,
    measurement     TEXT,
    partition_start INTEGER,
    partition_precision TEXT,
    rows            INTEGER,
    row_groups      INTEGER,
    schema_id       BLOB,
    unread          TEXT,
    bundle_id       TEXT NOT NULL,
    origin_node     INTEGER NOT NULL,
    received_at     INTEGER NOT NULL,
    position        INTEGER NOT NULL
) STRICT;
CREATE INDEX files_lost ON files (namespace, path) WHERE state = 'lost';

CREATE TABLE holders (
    file_id  INTEGER NOT NULL,
    node_id  INTEGER NOT NULL,
    stage_no INTEGER NOT NULL,
    PRIMARY KEY (file_id, node_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX holders_by_node ON holders (node_id, file_id);

CREATE TABLE changes (
    position INTEGER PRIMARY KEY,
    kind     TEXT NOT NULL,
    path     TEXT NOT NULL
) STRICT;

CREATE TABLE schemas (
    schema_id BLOB PRIMARY KEY,
    columns   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What footers say, gathered per measurement over all spokes; empty names where a path has none.
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

-- Where a bundle was imported; the authority on whether it was.
CREATE TABLE imported_bundles (
    spoke_id        TEXT NOT NULL,
    bundle_id       TEXT NOT NULL,
    import_no       INTEGER NOT NULL,     -- grows with each import
    label           TEXT,
    created_at      INTEGER NOT NULL,
    imported_at     INTEGER NOT NULL,
    node_id         INTEGER NOT NULL,
    files           INTEGER NOT NULL,
    bytes           INTEGER NOT NULL,
    committed       INTEGER NOT NULL,
    already_present INTEGER NOT NULL,
    conflicts       INTEGER NOT NULL,
    refused         INTEGER NOT NULL,
    removed         INTEGER NOT NULL,
    PRIMARY KEY (spoke_id, bundle_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX imported_in_order ON imported_bundles (spoke_id, import_no DESC);

-- Which node imports a bundle now; a later number fences an earlier one.
CREATE TABLE import_claims (
    number     INTEGER PRIMARY KEY,
    spoke_id   TEXT NOT NULL,
    bundle_id  TEXT NOT NULL,
    node_id    INTEGER NOT NULL,
    start_no   INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    renewals   INTEGER NOT NULL DEFAULT 0,
    UNIQUE (spoke_id, bundle_id)
) STRICT;

-- Bundles that a spoke said were on drives under way, as it said last.
CREATE TABLE in_transit (
    spoke_id   TEXT NOT NULL,
    bundle_id  TEXT NOT NULL,
    label      TEXT,
    created_at INTEGER NOT NULL,
    series     TEXT NOT NULL,
    numbers    TEXT NOT NULL,             -- ranges, as JSON
    stated_at  INTEGER NOT NULL,
    PRIMARY KEY (spoke_id, bundle_id)
) STRICT, WITHOUT ROWID;

-- What a node is in the cluster: its address is for other nodes, its URL for clients, its level the
-- newest command version that it applies.
CREATE TABLE members (
    node_id INTEGER PRIMARY KEY,
    state   TEXT NOT NULL DEFAULT 'active'
        CHECK (state IN ('joining', 'active', 'draining', 'removed')),
    votes   INTEGER NOT NULL DEFAULT 1,
    name    TEXT NOT NULL DEFAULT '',
    address TEXT,
    url     TEXT,
    level   INTEGER NOT NULL DEFAULT 0,
    imports INTEGER NOT NULL DEFAULT 1
) STRICT;

-- One-use words by which a node may join; used_by is a node id.
CREATE TABLE invitations (
    secret_hash BLOB PRIMARY KEY,
    votes       INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    used_by     INTEGER
) STRICT, WITHOUT ROWID;
