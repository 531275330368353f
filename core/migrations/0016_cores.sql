-- Which cores serve: each writes its row once a second. A core of before this has none. Read by people, decides nothing.
CREATE TABLE cores (
    id         TEXT   NOT NULL PRIMARY KEY,
    -- Its host and the address of its internal API.
    name       TEXT   NOT NULL,
    version    TEXT   NOT NULL,
    -- By the core's clock.
    started_at BIGINT NOT NULL,
    -- By the database's clock.
    seen_at    BIGINT NOT NULL,
    -- How many claims have had each result in its process, as JSON.
    results    TEXT   NOT NULL
);
