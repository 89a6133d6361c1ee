-- Who is told what happens to a run. How many a run has stands in its own row, which an append reads anyhow, so that
-- an append to a run without any costs nothing more.
ALTER TABLE runs ADD COLUMN pushes INTEGER NOT NULL DEFAULT 0;

-- `body` is opaque and sealed by whoever wrote it. `since` is the first event the receiver hears of. `due` says when
-- somebody may work at the receiver: a lease that was handed out (`epoch`) moves it to its own end; without it nothing
-- waits. `news` grows when something may have been added to what waits, so that nobody who found nothing goes to rest
-- on it.
CREATE TABLE pushes (
    tenant     TEXT    NOT NULL,
    run        TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    body       BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    due        INTEGER,
    epoch      INTEGER,
    fence      INTEGER NOT NULL,
    news       INTEGER NOT NULL,
    PRIMARY KEY (tenant, run, id)
) STRICT;

CREATE INDEX pushes_by_due ON pushes (due, tenant, run, id) WHERE due IS NOT NULL;

-- What has been appended to a run and is not yet told to those in `pushes`: events from one place up to another. One
-- row per run, however many appends there were.
CREATE TABLE outbox (
    tenant   TEXT    NOT NULL,
    run      TEXT    NOT NULL,
    from_seq INTEGER NOT NULL,
    to_seq   INTEGER NOT NULL,
    PRIMARY KEY (tenant, run)
) STRICT, WITHOUT ROWID;

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
