-- Which replicas must have a write before it is acknowledged: the least number, and a named set for each primary. A set is
-- changed under its version alone, so that of two cores that believe in two primaries only one can change it.

CREATE TABLE replication (
    one          BIGINT NOT NULL PRIMARY KEY,
    replicas_min BIGINT NOT NULL,
    CONSTRAINT replication_one CHECK (one = 1),
    CONSTRAINT replication_min CHECK (replicas_min >= 0)
);

CREATE TABLE replica_sets (
    id         BIGINT NOT NULL PRIMARY KEY,
    primary_at TEXT   NOT NULL,
    -- Servers, separated by spaces.
    members    TEXT   NOT NULL,
    joining    TEXT   NOT NULL,
    tag        TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    CONSTRAINT replica_sets_primary UNIQUE (primary_at)
);

CREATE TABLE replication_audit (
    number BIGINT NOT NULL PRIMARY KEY,
    at     BIGINT NOT NULL,
    who    TEXT   NOT NULL,
    what   TEXT   NOT NULL,
    before TEXT,
    after  TEXT   NOT NULL
);
