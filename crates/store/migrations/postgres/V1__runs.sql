-- The tenant begins every key: what belongs to one tenant lies together, and no query can forget it.
-- Ids and keys compare by their bytes (COLLATE "C"), as everywhere else in wopr, whatever the database's own
-- collation. Times are milliseconds since the Unix epoch. Nothing here needs a sequence, a trigger or a session.

CREATE TABLE runs (
    tenant      text COLLATE "C" NOT NULL,
    run         text COLLATE "C" NOT NULL,
    workflow    text COLLATE "C" NOT NULL,
    version     text COLLATE "C" NOT NULL,
    status      text COLLATE "C" NOT NULL,
    principal   text COLLATE "C" NOT NULL,
    parent_run  text COLLATE "C",
    parent_node text COLLATE "C",
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    next_seq    bigint NOT NULL,
    PRIMARY KEY (tenant, run)
);

-- Almost every run ends completed, and the list of completed runs is nearly the list of all runs, which the
-- primary key serves. Leaving them out keeps the index small and spares a run that ends in its first append.
CREATE INDEX runs_by_status ON runs (tenant, status, run) WHERE status <> 'completed';
CREATE INDEX runs_by_workflow ON runs (tenant, workflow, run);
CREATE INDEX runs_by_parent ON runs (tenant, parent_run, run) WHERE parent_run IS NOT NULL;

CREATE TABLE events (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    body   bytea  NOT NULL,
    PRIMARY KEY (tenant, run, seq)
);

-- One row per run: only the newest fold is ever read.
CREATE TABLE snapshots (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    head   bigint NOT NULL,
    body   bytea  NOT NULL,
    PRIMARY KEY (tenant, run)
);

CREATE TABLE tasks (
    tenant     text COLLATE "C" NOT NULL,
    run        text COLLATE "C" NOT NULL,
    context    text COLLATE "C",
    state      text COLLATE "C" NOT NULL,
    interrupt  text COLLATE "C",
    updated_at bigint NOT NULL,
    -- Copied from the run, where it never changes, so that a filter by creator needs no join.
    principal  text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, run)
);

-- A page of tasks says how many match in all; the last two columns let the index alone answer that.
CREATE INDEX tasks_by_time ON tasks (tenant, updated_at, run, state, principal);
CREATE INDEX tasks_by_context ON tasks (tenant, context, updated_at, run) WHERE context IS NOT NULL;

CREATE TABLE timers (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    due    bigint NOT NULL,
    PRIMARY KEY (tenant, run, key)
);

CREATE INDEX timers_by_due ON timers (due, tenant, run, key);

-- A row without an epoch is held by nobody; its fence still counts the leases there were.
CREATE TABLE effects (
    tenant      text COLLATE "C" NOT NULL,
    run         text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    body        bytea  NOT NULL,
    enqueued_at bigint NOT NULL,
    epoch       bigint,
    lease_until bigint,
    fence       bigint NOT NULL,
    PRIMARY KEY (tenant, run, key)
);

CREATE INDEX effects_free ON effects (enqueued_at, tenant, run, key) WHERE epoch IS NULL;
CREATE INDEX effects_held ON effects (lease_until, tenant, run, key) WHERE epoch IS NOT NULL;

-- `place` keeps the order of arrival within a target: one more than the largest there is. Two sources that tell
-- a target at the same moment may share a place, since neither came first; their keys order them then.
CREATE TABLE inbox (
    tenant     text COLLATE "C" NOT NULL,
    target     text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    source_seq bigint NOT NULL,
    place      bigint NOT NULL,
    body       bytea  NOT NULL,
    PRIMARY KEY (tenant, target, source, source_seq)
);

CREATE INDEX inbox_by_place ON inbox (tenant, target, place);

CREATE TABLE idempotency (
    tenant     text COLLATE "C" NOT NULL,
    principal  text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    digest     text COLLATE "C" NOT NULL,
    run        text COLLATE "C",
    response   bytea  NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (tenant, principal, scope, key)
);

CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);

CREATE TABLE messages (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    id     text COLLATE "C" NOT NULL,
    body   bytea  NOT NULL,
    PRIMARY KEY (tenant, run, id)
);

CREATE TABLE blobs (
    tenant     text COLLATE "C" NOT NULL,
    run        text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    media_type text COLLATE "C" NOT NULL,
    bytes      bytea NOT NULL,
    PRIMARY KEY (tenant, run, id)
);

-- The empty tenant, which no tenant can be called, owns what every tenant may use.
CREATE TABLE workflows (
    tenant        text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    version       text COLLATE "C" NOT NULL,
    body          bytea  NOT NULL,
    registered_at bigint NOT NULL,
    PRIMARY KEY (tenant, id, version)
);

CREATE TABLE workflow_heads (
    tenant  text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, id)
);

CREATE TABLE api_keys (
    id            text COLLATE "C" NOT NULL PRIMARY KEY,
    secret_sha256 text COLLATE "C" NOT NULL,
    tenant        text COLLATE "C" NOT NULL,
    principal     text COLLATE "C" NOT NULL,
    scopes        text COLLATE "C" NOT NULL,
    created_at    bigint NOT NULL,
    revoked_at    bigint
);

-- The lives of processes. The last one is a row of its own, so that beginning the next locks exactly that row.
CREATE TABLE epochs (
    epoch    bigint NOT NULL PRIMARY KEY,
    began_at bigint NOT NULL
);

CREATE TABLE last_epoch (
    one   boolean NOT NULL PRIMARY KEY CHECK (one),
    epoch bigint  NOT NULL
);

INSERT INTO last_epoch (one, epoch) VALUES (true, 0);
