-- Runs on their way out, each with the root of its tree. A run is gone once both it and its root have a row here;
-- its other rows are deleted afterwards, a few at a time, and then its row here: the root's last.
CREATE TABLE removals (
    tenant text COLLATE "C" NOT NULL,
    run    text COLLATE "C" NOT NULL,
    root   text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, run)
);

CREATE INDEX removals_by_root ON removals (tenant, root, run) WHERE run <> root;
