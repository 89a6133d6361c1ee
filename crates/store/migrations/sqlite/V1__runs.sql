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
    -- The A2A task that the run is. A row of its own would be written with every run and name it once more.
    context         TEXT,
    task_state      TEXT,
    task_interrupt  TEXT,
    task_updated_at INTEGER,
    PRIMARY KEY (tenant, run),
    CHECK ((task_state IS NULL) = (task_updated_at IS NULL))
) STRICT, WITHOUT ROWID;

-- Almost every run ends completed, and the list of completed runs is nearly the list of all runs, which the
-- primary key serves. Leaving them out keeps the index small and spares a run that ends in its first append.
CREATE INDEX runs_by_status ON runs (tenant, status, run) WHERE status <> 'completed';
CREATE INDEX runs_by_workflow ON runs (tenant, workflow, run);
CREATE INDEX runs_by_parent ON runs (tenant, parent_run, run) WHERE parent_run IS NOT NULL;

-- A page of tasks says how many match in all; the last two columns let the index alone answer that.
CREATE INDEX tasks_by_time ON runs (tenant, task_updated_at, run, task_state, principal)
    WHERE task_state IS NOT NULL;
CREATE INDEX tasks_by_context ON runs (tenant, context, task_updated_at, run) WHERE context IS NOT NULL;

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

CREATE TABLE timers (
    tenant TEXT    NOT NULL,
    run    TEXT    NOT NULL,
    key    TEXT    NOT NULL,
    due    INTEGER NOT NULL,
    PRIMARY KEY (tenant, run, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX timers_by_due ON timers (due, tenant, run, key);

-- A row without an epoch is held by nobody; its fence still counts the leases there were.
CREATE TABLE effects (
    tenant      TEXT    NOT NULL,
    run         TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    body        BLOB    NOT NULL,
    enqueued_at INTEGER NOT NULL,
    epoch       INTEGER,
    lease_until INTEGER,
    fence       INTEGER NOT NULL,
    PRIMARY KEY (tenant, run, key)
) STRICT;

CREATE INDEX effects_free ON effects (enqueued_at, tenant, run, key) WHERE epoch IS NULL;
CREATE INDEX effects_held ON effects (lease_until, tenant, run, key) WHERE epoch IS NOT NULL;

-- `place` keeps the order of arrival: SQLite gives a new row one more than the largest there is.
CREATE TABLE inbox (
    place      INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    target     TEXT    NOT NULL,
    source     TEXT    NOT NULL,
    source_seq INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    UNIQUE (tenant, target, source, source_seq)
) STRICT;

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

CREATE TABLE messages (
    tenant TEXT    NOT NULL,
    run    TEXT    NOT NULL,
    seq    INTEGER NOT NULL,
    id     TEXT    NOT NULL,
    body   BLOB    NOT NULL,
    PRIMARY KEY (tenant, run, id)
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
    body          BLOB    NOT NULL,
    registered_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, id, version)
) STRICT;

CREATE TABLE workflow_heads (
    tenant  TEXT NOT NULL,
    id      TEXT NOT NULL,
    version TEXT NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE api_keys (
    id            TEXT    NOT NULL PRIMARY KEY,
    secret_sha256 TEXT    NOT NULL,
    tenant        TEXT    NOT NULL,
    principal     TEXT    NOT NULL,
    scopes        TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    revoked_at    INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE epochs (
    epoch    INTEGER PRIMARY KEY,
    began_at INTEGER NOT NULL
) STRICT;
