-- Who is told what happens to a run. How many a run has stands in its own row, which an append reads anyhow, so that
-- an append to a run without any costs nothing more.
ALTER TABLE runs ADD COLUMN pushes bigint NOT NULL DEFAULT 0;

-- `body` is opaque and sealed by whoever wrote it. `since` is the first event the receiver hears of. `due` says when
-- somebody may work at the receiver: a lease that was handed out (`epoch`) moves it to its own end; without it nothing
-- waits. `news` grows when something may have been added to what waits, so that nobody who found nothing goes to rest
-- on it.
CREATE TABLE pushes (
    tenant     text COLLATE "C" NOT NULL,
    run        text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    body       bytea  NOT NULL,
    created_at bigint NOT NULL,
    since      bigint NOT NULL,
    due        bigint,
    epoch      bigint,
    fence      bigint NOT NULL,
    news       bigint NOT NULL,
    PRIMARY KEY (tenant, run, id)
);

CREATE INDEX pushes_by_due ON pushes (due, tenant, run, id) WHERE due IS NOT NULL;

-- What has been appended to a run and is not yet told to those in `pushes`: events from one place up to another. One
-- row per run, however many appends there were.
CREATE TABLE outbox (
    tenant   text COLLATE "C" NOT NULL,
    run      text COLLATE "C" NOT NULL,
    from_seq bigint NOT NULL,
    to_seq   bigint NOT NULL,
    PRIMARY KEY (tenant, run)
);

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
