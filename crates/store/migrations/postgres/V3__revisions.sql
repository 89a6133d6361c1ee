-- Every change of the registry gets a revision larger than all before, so that a process can ask what is new. The
-- last one is a row of its own: whoever changes something holds it until the commit, so that revisions become visible
-- in their order and nobody can see a later one and miss an earlier.
CREATE TABLE last_revision (
    one      boolean NOT NULL PRIMARY KEY CHECK (one),
    revision bigint  NOT NULL
);

INSERT INTO last_revision (one, revision) VALUES (true, 1);

ALTER TABLE workflow_heads ADD COLUMN revision bigint NOT NULL DEFAULT 1;
ALTER TABLE workflow_heads ALTER COLUMN revision DROP DEFAULT;
CREATE INDEX workflow_heads_by_revision ON workflow_heads (revision);

ALTER TABLE api_keys ADD COLUMN revision bigint NOT NULL DEFAULT 1;
ALTER TABLE api_keys ALTER COLUMN revision DROP DEFAULT;
CREATE INDEX api_keys_by_revision ON api_keys (revision);
