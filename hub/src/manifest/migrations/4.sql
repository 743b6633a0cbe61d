-- Version 4: many nodes.
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
INSERT INTO members (node_id) SELECT node_id FROM nodes;
