-- Who has the turn to fire a timer that is due. `due` says when somebody may: a lease that was handed out (`epoch`)
-- moves it to its own end.
ALTER TABLE timers ADD COLUMN epoch INTEGER;
ALTER TABLE timers ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;

-- A start ends the leases of earlier lives, without looking through every timer there is.
CREATE INDEX timers_held ON timers (tenant, run, key) WHERE epoch IS NOT NULL;
