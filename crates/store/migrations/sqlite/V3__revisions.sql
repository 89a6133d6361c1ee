-- Every change of the registry gets a revision larger than all before, so that a process can ask what is new.
CREATE TABLE last_revision (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL
) STRICT;

INSERT INTO last_revision (one, revision) VALUES (1, 1);

ALTER TABLE workflow_heads ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
CREATE INDEX workflow_heads_by_revision ON workflow_heads (revision);

ALTER TABLE api_keys ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
CREATE INDEX api_keys_by_revision ON api_keys (revision);
