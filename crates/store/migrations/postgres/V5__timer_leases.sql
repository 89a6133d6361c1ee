-- Who has the turn to fire a timer that is due. `due` says when somebody may: a lease that was handed out (`epoch`)
-- moves it to its own end.
ALTER TABLE timers ADD COLUMN epoch bigint;
ALTER TABLE timers ADD COLUMN fence bigint NOT NULL DEFAULT 0;
