-- The tenant begins every key: what belongs to one tenant lies together, and no query can forget it.
-- Keys grow with time wherever they can (ids of runs begin with it), so that new rows go to the right edge of each
-- tree and the appends of one group share pages; a tree keyed at random costs a page per row.
-- Rows of fixed fields are WITHOUT ROWID, one B-tree instead of two. Rows with a body are not: there a body of more
-- than a quarter of a page would spill into pages of its own. In a plain table it may fill the page, and the key's
-- index stays small. Measured with 256 appends in flight, four events of 3 kB each: a third of the time, half of the
-- write-ahead log.
-- Times are milliseconds since the Unix epoch.

-- "wopr" in ASCII, so that file(1) and a careful operator can tell what this is.
PRAGMA application_id = 2003791986;

CREATE TABLE runs (
    tenant      TEXT    NOT NULL,
    run         TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    principal   TEXT    NOT NULL,
    parent_run  TEXT,
    parent_node TEXT,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    next_seq    INTEGER NOT NULL,
    -- The number of push configurations, so that an append to a run without any reads no other table.
    pushes      INTEGER NOT NULL DEFAULT 0,
    -- By how many runs the tree below a root was allowed to grow.
    descendants INTEGER NOT NULL DEFAULT 0,
    -- What it remembered in a scope of its own was deleted, so that its tenant has room.
    memory_forgotten INTEGER NOT NULL DEFAULT 0,
    -- With the status, these are the run's phase.
    waiting_on  TEXT,
    error_code  TEXT,
    phase_since INTEGER NOT NULL,
    run_group   TEXT,
    alias       TEXT,
    PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;

-- Almost every run ends completed, and the list of completed runs is nearly the list of all runs, which the
-- primary key serves. Leaving them out keeps the index small and spares a run that ends in its first append.
CREATE INDEX runs_by_status ON runs (tenant, status, run) WHERE status <> 'completed';
CREATE INDEX runs_by_workflow ON runs (tenant, workflow, run);
CREATE INDEX runs_by_parent ON runs (tenant, parent_run, run) WHERE parent_run IS NOT NULL;

-- A page of runs by phase says how many match in all; the last three columns let the index alone answer that.
CREATE INDEX runs_by_phase ON runs (tenant, phase_since, run, status, error_code, principal);
CREATE INDEX runs_by_group ON runs (tenant, run_group, phase_since, run) WHERE run_group IS NOT NULL;

-- The names of children follow from those of their parents, so only roots are found by theirs.
CREATE UNIQUE INDEX runs_by_alias ON runs (tenant, alias) WHERE alias IS NOT NULL AND parent_run IS NULL;

-- The events of one append share a row, up to a bound: each costs its bytes and not two entries of B-trees. A row is
-- named by its last event, so that the first row from a position on is the one that holds it.
CREATE TABLE events (
    tenant   TEXT    NOT NULL,
    run      TEXT    NOT NULL,
    last_seq INTEGER NOT NULL,
    bodies   BLOB    NOT NULL,
    PRIMARY KEY (tenant, run, last_seq)
) STRICT;

-- One row per run: only the newest fold is ever read.
CREATE TABLE snapshots (
    tenant TEXT    NOT NULL,
    run    TEXT    NOT NULL,
    head   INTEGER NOT NULL,
    body   BLOB    NOT NULL,
    PRIMARY KEY (tenant, run)
) STRICT;

-- What waits for something to be done. `queue` is 0 for timers, 1 for effects, 2 for subscriptions with deliveries.
-- `due` says when a row can be leased; a lease (`epoch`) moves it to the lease's own end; without it the row waits to be
-- woken. A row that is woken while it is leased notes that in `woken`. `fence` counts the leases there were.
CREATE TABLE work (
    tenant TEXT    NOT NULL,
    run    TEXT    NOT NULL,
    queue  INTEGER NOT NULL,
    key    TEXT    NOT NULL,
    due    INTEGER,
    body   BLOB    NOT NULL,
    epoch  INTEGER,
    fence  INTEGER NOT NULL,
    deaths INTEGER NOT NULL DEFAULT 0,
    woken  INTEGER,
    -- A row that workers lease; `ready` is when they can. `leases` counts their leases that were not given back.
    worker_queue TEXT,
    ready  INTEGER,
    leases INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, run, queue, key)
) STRICT;

-- `deaths`, here and below, counts the processes that died while they held the row. At 2 it is handed out beside few
-- others, at 3 it is quarantined, at 4 its run knows; an outbox row at 20 and 21. Subscriptions are never quarantined: deliveries can be given up
-- one by one. So the conditions of the indexes are those of the queries.
CREATE INDEX work_free ON work (queue, due, tenant, run, key)
    WHERE epoch IS NULL AND due IS NOT NULL AND deaths < 2;
CREATE INDEX work_free_by_tenant ON work (queue, tenant, due, run, key)
    WHERE epoch IS NULL AND due IS NOT NULL AND deaths < 2;
CREATE INDEX work_suspect ON work (queue, due, tenant, run, key)
    WHERE due IS NOT NULL AND (deaths = 2 OR deaths > 2 AND queue = 2);
CREATE INDEX work_quarantined ON work (tenant, run) WHERE deaths = 3 AND queue <> 2;
-- A start ends the leases of earlier epochs without looking through every row that waits.
CREATE INDEX work_held ON work (queue, due, tenant, run, key) WHERE epoch IS NOT NULL;
-- What waits in a queue for workers, and what of a tenant they have.
CREATE INDEX work_offers ON work (tenant, worker_queue, ready, run, key)
    WHERE worker_queue IS NOT NULL AND deaths < 3;
CREATE INDEX work_offers_of_tenant ON work (tenant, ready) WHERE worker_queue IS NOT NULL AND deaths < 3;
-- Deliveries to the peers of calls. The keys of attempts begin with a digit.
CREATE INDEX work_call_deliveries ON work (tenant, run, key) WHERE queue = 1 AND key >= 'a';

-- `place` keeps the order of arrival: SQLite gives a new row one more than the largest there is.
CREATE TABLE inbox (
    place      INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    target     TEXT    NOT NULL,
    source     TEXT    NOT NULL,
    source_seq INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    -- Who claimed it; what comes in while a process lives is heard without that.
    epoch      INTEGER,
    deaths     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, target, source, source_seq)
) STRICT;

CREATE INDEX inbox_held ON inbox (tenant, target) WHERE epoch IS NOT NULL;
CREATE INDEX inbox_quarantined ON inbox (tenant, target) WHERE deaths = 3;

-- Keys of requests fall anywhere. So a record goes to the end of its table, and many at once, in the order of their
-- hashes, into the index: all up to the place noted last, and perhaps some behind it.
CREATE TABLE idempotency (
    place      INTEGER PRIMARY KEY,
    hash       INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    principal  TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    digest     TEXT    NOT NULL,
    run        TEXT,
    response   BLOB    NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;

CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);

CREATE TABLE idempotency_index (
    hash  INTEGER NOT NULL,
    place INTEGER NOT NULL,
    PRIMARY KEY (hash, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_indexed (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    place INTEGER NOT NULL
) STRICT;

INSERT INTO idempotency_indexed (one, place) VALUES (1, 0);

-- `place` keeps the order of acceptance among messages at one place of the log, as in `inbox`.
CREATE TABLE messages (
    place  INTEGER PRIMARY KEY,
    tenant TEXT    NOT NULL,
    run    TEXT    NOT NULL,
    seq    INTEGER NOT NULL,
    id     TEXT    NOT NULL,
    body   BLOB    NOT NULL,
    UNIQUE (tenant, run, id)
) STRICT;

CREATE TABLE blobs (
    tenant     TEXT NOT NULL,
    run        TEXT NOT NULL,
    id         TEXT NOT NULL,
    media_type TEXT NOT NULL,
    bytes      BLOB NOT NULL,
    PRIMARY KEY (tenant, run, id)
) STRICT;

-- The empty tenant, which no tenant can be called, owns what every tenant may use.
CREATE TABLE workflows (
    tenant        TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    version       TEXT    NOT NULL,
    dialect       TEXT    NOT NULL,
    body          BLOB    NOT NULL,
    registered_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, id, version)
) STRICT;

-- No version: the workflow was removed. At check_at, the versions that are left of it are looked at; they are deleted
-- once two checks in a row have found no run (is_unused: the last one did).
CREATE TABLE workflow_heads (
    tenant    TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    version   TEXT,
    revision  INTEGER NOT NULL,
    check_at  INTEGER,
    is_unused INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX workflow_heads_by_revision ON workflow_heads (revision);
CREATE INDEX workflow_heads_by_check ON workflow_heads (check_at) WHERE check_at IS NOT NULL;

CREATE TABLE api_keys (
    tenant        TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    secret_sha256 TEXT    NOT NULL,
    principal     TEXT    NOT NULL,
    scopes        TEXT    NOT NULL,
    membership    TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    revoked_at    INTEGER,
    revision      INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX api_keys_by_revision ON api_keys (revision);

-- Secrets that tenants keep here, encrypted by the host.
CREATE TABLE secrets (
    tenant      TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    sealed      BLOB    NOT NULL,
    fingerprint TEXT    NOT NULL,
    set_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

-- What tells whether a host has the master key of earlier ones. It is made from the key and does not give it away.
CREATE TABLE master_key (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    check_value TEXT    NOT NULL
) STRICT;

CREATE TABLE epochs (
    epoch    INTEGER PRIMARY KEY,
    began_at INTEGER NOT NULL,
    -- One that ended in order.
    is_ended INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The latest time that a host went by: a later start does not begin before it, whatever the machine's clock says.
CREATE TABLE clock (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    high_water INTEGER NOT NULL
) STRICT;

-- Every change of the registry gets a revision larger than all before, so that a process can ask what is new.
CREATE TABLE last_revision (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL
) STRICT;

INSERT INTO last_revision (one, revision) VALUES (1, 1);

-- Subscriptions. `body` is opaque and sealed by whoever wrote it. `since` is the first event the receiver hears of. Each
-- has a row in `work`, which is created and deleted with it.
CREATE TABLE pushes (
    tenant     TEXT    NOT NULL,
    run        TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    body       BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    PRIMARY KEY (tenant, run, id)
) STRICT;

-- What has been appended to a run and is not yet told to those in `pushes`: events from one place up to another. One
-- row per run, however many appends there were.
CREATE TABLE outbox (
    tenant   TEXT    NOT NULL,
    run      TEXT    NOT NULL,
    from_seq INTEGER NOT NULL,
    to_seq   INTEGER NOT NULL,
    -- Who claimed it when it was found at a start.
    epoch    INTEGER,
    deaths   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;

CREATE INDEX outbox_held ON outbox (tenant, run) WHERE epoch IS NOT NULL;
CREATE INDEX outbox_quarantined ON outbox (tenant, run) WHERE deaths = 20;

-- What waits for a receiver, and what was given up (`dead_at`).
CREATE TABLE deliveries (
    tenant      TEXT    NOT NULL,
    run         TEXT    NOT NULL,
    push        TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    body        BLOB    NOT NULL,
    enqueued_at INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    error       TEXT,
    dead_at     INTEGER,
    PRIMARY KEY (tenant, run, push, seq)
) STRICT;

CREATE INDEX deliveries_waiting ON deliveries (tenant, run, push, seq) WHERE dead_at IS NULL;
CREATE INDEX deliveries_dead ON deliveries (tenant, run, push, seq) WHERE dead_at IS NOT NULL;

-- Runs on their way out, each with the root of its tree. A run is gone once both it and its root have a row here;
-- its other rows are deleted afterwards, a few at a time, and then its row here: the root's last.
CREATE TABLE removals (
    tenant TEXT NOT NULL,
    run    TEXT NOT NULL,
    root   TEXT NOT NULL,
    PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;

CREATE INDEX removals_by_root ON removals (tenant, root, run) WHERE run <> root;

-- What agents remember, in versions: the latest row of an id is its value. A row without content removes it.
CREATE TABLE agent_memory (
    tenant     TEXT    NOT NULL,
    scope      TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    written_at INTEGER NOT NULL,
    run        TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    content    TEXT,
    tags       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    untrusted  INTEGER NOT NULL,
    -- What it counts for in the share of its tenant, in bytes.
    size       INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, id, written_at, run, seq)
) STRICT;

CREATE INDEX agent_memory_expiring ON agent_memory (tenant, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX agent_memory_removed ON agent_memory (tenant, written_at) WHERE content IS NULL;
-- Counts the share of a tenant without reading contents.
CREATE INDEX agent_memory_sizes ON agent_memory (tenant, size);

-- What models took in windows of the calendar, of a tenant as a whole (the workflow without a name) or of one workflow.
-- An append adds to it what the answers took that it records.
CREATE TABLE spending (
    tenant      TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    per         TEXT    NOT NULL,
    since       INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    tokens      INTEGER NOT NULL,
    cost_micros INTEGER NOT NULL,
    time_ms     INTEGER NOT NULL,
    PRIMARY KEY (tenant, workflow, per, since)
) STRICT, WITHOUT ROWID;

CREATE INDEX spending_ended ON spending (until);
