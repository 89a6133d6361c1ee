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
    -- The number of push configurations, so that an append to a run without any reads no other table.
    pushes      bigint NOT NULL DEFAULT 0,
    -- By how many runs the tree below a root was allowed to grow.
    descendants bigint NOT NULL DEFAULT 0,
    -- What it remembered in a scope of its own was deleted, so that its tenant has room.
    memory_forgotten boolean NOT NULL DEFAULT false,
    -- With the status, these are the run's phase.
    waiting_on  text COLLATE "C",
    error_code  text COLLATE "C",
    phase_since bigint NOT NULL,
    run_group   text COLLATE "C",
    alias       text COLLATE "C",
    PRIMARY KEY (tenant, run)
);

-- Almost every run ends completed, and the list of completed runs is nearly the list of all runs, which the
-- primary key serves. Leaving them out keeps the index small and spares a run that ends in its first append.
CREATE INDEX runs_by_status ON runs (tenant, status, run) WHERE status <> 'completed';
CREATE INDEX runs_by_workflow ON runs (tenant, workflow, run);
CREATE INDEX runs_by_parent ON runs (tenant, parent_run, run) WHERE parent_run IS NOT NULL;

-- A page of runs by phase says how many match in all; the last three columns let the index alone answer that.
CREATE INDEX runs_by_phase ON runs (tenant, phase_since, run) INCLUDE (status, error_code, principal);
CREATE INDEX runs_by_group ON runs (tenant, run_group, phase_since, run) WHERE run_group IS NOT NULL;

-- The names of children follow from those of their parents, so only roots are found by theirs.
CREATE UNIQUE INDEX runs_by_alias ON runs (tenant, alias) WHERE alias IS NOT NULL AND parent_run IS NULL;

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

-- What waits for something to be done. `queue` is 0 for timers, 1 for effects, 2 for subscriptions with deliveries.
-- `due` says when a row can be leased; a lease (`epoch`) moves it to the lease's own end; without it the row waits to be
-- woken. A row that is woken while it is leased notes that in `woken`. `fence` counts the leases there were.
CREATE TABLE work (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    queue  bigint NOT NULL,
    key    text COLLATE "C" NOT NULL,
    due    bigint,
    body   bytea  NOT NULL,
    epoch  bigint,
    fence  bigint NOT NULL,
    deaths bigint NOT NULL DEFAULT 0,
    woken  bigint,
    -- A row that workers lease; `ready` is when they can. `leases` counts their leases that were not given back.
    worker_queue text COLLATE "C",
    ready  bigint,
    leases bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, run, queue, key)
);

-- `deaths`, here and below, counts the processes that died while they held the row. At 2 it is handed out beside few
-- others, at 3 it is quarantined, at 4 its run knows; an outbox row at 20 and 21. Subscriptions are never quarantined: deliveries can be given up
-- one by one.
CREATE INDEX work_free ON work (queue, due, tenant, run, key)
    WHERE epoch IS NULL AND due IS NOT NULL AND deaths < 2;
CREATE INDEX work_free_by_tenant ON work (queue, tenant, due, run, key)
    WHERE epoch IS NULL AND due IS NOT NULL AND deaths < 2;
CREATE INDEX work_suspect ON work (queue, due, tenant, run, key)
    WHERE due IS NOT NULL AND (deaths = 2 OR deaths > 2 AND queue = 2);
CREATE INDEX work_quarantined ON work (tenant, run) WHERE deaths = 3 AND queue <> 2;
CREATE INDEX work_held ON work (queue, due, tenant, run, key) WHERE epoch IS NOT NULL;
-- What waits in a queue for workers, and what of a tenant they have.
CREATE INDEX work_offers ON work (tenant, worker_queue, ready, run, key)
    WHERE worker_queue IS NOT NULL AND deaths < 3;
CREATE INDEX work_offers_of_tenant ON work (tenant, ready) WHERE worker_queue IS NOT NULL AND deaths < 3;
-- Deliveries to the peers of calls. The keys of attempts begin with a digit.
CREATE INDEX work_call_deliveries ON work (tenant, run, key) WHERE queue = 1 AND key >= 'a';

-- `place` keeps the order of arrival within a target: one more than the largest there is. Two sources that tell
-- a target at the same moment may share a place, since neither came first; their keys order them then.
CREATE TABLE inbox (
    tenant     text COLLATE "C" NOT NULL,
    target     text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    source_seq bigint NOT NULL,
    place      bigint NOT NULL,
    body       bytea  NOT NULL,
    -- Who claimed it; what comes in while a process lives is heard without that.
    epoch      bigint,
    deaths     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, target, source, source_seq)
);

CREATE INDEX inbox_held ON inbox (epoch) WHERE epoch IS NOT NULL;
CREATE INDEX inbox_quarantined ON inbox (tenant, target) WHERE deaths = 3;

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

-- `place` keeps the order of acceptance within a run, whose appends come one after the other. A copy of rows brings its own.
CREATE TABLE messages (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    place  bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
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
    dialect       text   NOT NULL,
    body          bytea  NOT NULL,
    registered_at bigint NOT NULL,
    PRIMARY KEY (tenant, id, version)
);

-- No version: the workflow was removed. At check_at, the versions that are left of it are looked at; they are deleted
-- once two checks in a row have found no run (is_unused: the last one did).
CREATE TABLE workflow_heads (
    tenant    text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    version   text COLLATE "C",
    revision  bigint NOT NULL,
    check_at  bigint,
    is_unused boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, id)
);

CREATE INDEX workflow_heads_by_revision ON workflow_heads (revision);
CREATE INDEX workflow_heads_by_check ON workflow_heads (check_at) WHERE check_at IS NOT NULL;

CREATE TABLE api_keys (
    tenant        text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    secret_sha256 text COLLATE "C" NOT NULL,
    principal     text COLLATE "C" NOT NULL,
    scopes        text COLLATE "C" NOT NULL,
    membership    text COLLATE "C" NOT NULL,
    created_at    bigint NOT NULL,
    revoked_at    bigint,
    revision      bigint NOT NULL,
    PRIMARY KEY (tenant, id)
);

CREATE INDEX api_keys_by_revision ON api_keys (revision);

-- Secrets that tenants keep here, encrypted by the host.
CREATE TABLE secrets (
    tenant      text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    sealed      bytea NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    set_at      bigint NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- What tells whether a host has the master key of the other hosts. It is made from the key and does not give it away.
CREATE TABLE master_key (
    one         boolean PRIMARY KEY CHECK (one),
    check_value text COLLATE "C" NOT NULL
);

-- The lives of processes. The last one is a row of its own, so that beginning the next locks exactly that row.
CREATE TABLE epochs (
    epoch    bigint NOT NULL PRIMARY KEY,
    began_at bigint NOT NULL,
    -- By the clock of this server. One that is silent for long is buried: what it had in hand has counted a death.
    seen_at  bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    is_buried boolean NOT NULL DEFAULT false,
    -- One that ended in order.
    is_ended boolean NOT NULL DEFAULT false
);

CREATE INDEX epochs_living ON epochs (seen_at) WHERE NOT is_buried AND NOT is_ended;

CREATE TABLE last_epoch (
    one   boolean NOT NULL PRIMARY KEY CHECK (one),
    epoch bigint  NOT NULL
);

INSERT INTO last_epoch (one, epoch) VALUES (true, 0);

-- The latest time by the database's clock that a process went by: no later start begins before it, also after a
-- failover to a server whose clock is behind.
CREATE TABLE clock (
    one        boolean PRIMARY KEY CHECK (one),
    high_water bigint  NOT NULL
);

-- Every change of the registry gets a revision larger than all before, so that a process can ask what is new. The
-- last one is a row of its own: whoever changes something holds it until the commit, so that revisions become visible
-- in their order and nobody can see a later one and miss an earlier.
CREATE TABLE last_revision (
    one      boolean NOT NULL PRIMARY KEY CHECK (one),
    revision bigint  NOT NULL
);

INSERT INTO last_revision (one, revision) VALUES (true, 1);

-- Subscriptions. `body` is opaque and sealed by whoever wrote it. `since` is the first event the receiver hears of. Each
-- has a row in `work`, which is created and deleted with it.
CREATE TABLE pushes (
    tenant     text COLLATE "C" NOT NULL,
    run        text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    body       bytea  NOT NULL,
    created_at bigint NOT NULL,
    since      bigint NOT NULL,
    PRIMARY KEY (tenant, run, id)
);

-- What has been appended to a run and is not yet told to those in `pushes`: events from one place up to another. One
-- row per run, however many appends there were.
CREATE TABLE outbox (
    tenant   text COLLATE "C" NOT NULL,
    run      text COLLATE "C" NOT NULL,
    from_seq bigint NOT NULL,
    to_seq   bigint NOT NULL,
    -- Who claimed it when it was found at a start.
    epoch    bigint,
    deaths   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, run)
);

CREATE INDEX outbox_held ON outbox (epoch) WHERE epoch IS NOT NULL;
CREATE INDEX outbox_quarantined ON outbox (tenant, run) WHERE deaths = 20;

-- What waits for a receiver, and what was given up (`dead_at`).
CREATE TABLE deliveries (
    tenant      text COLLATE "C" NOT NULL,
    run         text COLLATE "C" NOT NULL,
    push        text COLLATE "C" NOT NULL,
    seq         bigint NOT NULL,
    body        bytea  NOT NULL,
    enqueued_at bigint NOT NULL,
    attempts    bigint NOT NULL,
    error       text COLLATE "C",
    dead_at     bigint,
    PRIMARY KEY (tenant, run, push, seq)
);

CREATE INDEX deliveries_waiting ON deliveries (tenant, run, push, seq) WHERE dead_at IS NULL;
CREATE INDEX deliveries_dead ON deliveries (tenant, run, push, seq) WHERE dead_at IS NOT NULL;

-- Runs on their way out, each with the root of its tree. A run is gone once both it and its root have a row here;
-- its other rows are deleted afterwards, a few at a time, and then its row here: the root's last.
CREATE TABLE removals (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    root   text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, run)
);

CREATE INDEX removals_by_root ON removals (tenant, root, run) WHERE run <> root;

-- What agents remember, in versions: the latest row of an id is its value. A row without content removes it.
CREATE TABLE agent_memory (
    tenant     text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    written_at bigint NOT NULL,
    run        text COLLATE "C" NOT NULL,
    seq        bigint NOT NULL,
    content    text COLLATE "C",
    tags       text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    untrusted  boolean NOT NULL,
    -- What it counts for in the share of its tenant, in bytes.
    size       bigint NOT NULL,
    PRIMARY KEY (tenant, scope, id, written_at, run, seq)
);

CREATE INDEX agent_memory_expiring ON agent_memory (tenant, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX agent_memory_removed ON agent_memory (tenant, written_at) WHERE content IS NULL;

-- What models took in windows of the calendar, of a tenant as a whole (the workflow without a name) or of one workflow.
-- An append adds to it what the answers took that it records.
CREATE TABLE spending (
    tenant      text COLLATE "C" NOT NULL,
    workflow    text COLLATE "C" NOT NULL,
    per         text COLLATE "C" NOT NULL,
    since       bigint NOT NULL,
    until       bigint NOT NULL,
    tokens      bigint NOT NULL,
    cost_micros bigint NOT NULL,
    time_ms     bigint NOT NULL,
    PRIMARY KEY (tenant, workflow, per, since)
);

CREATE INDEX spending_ended ON spending (until);
