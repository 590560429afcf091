-- Takes events from claims whose lease has ended: their relay died, or slept. They are due again at once, or DEAD when
-- that was their last attempt.
--   $1 max attempts   $2 the frontier: nothing above it has been claimed by this relay, and it will look there itself
--   $3 most events
-- Returns id, event_type, aggregate_id, attempts, status.
with fresh as materialized (
  select ctid as place
  from {{.schema}}.events
  where published_at is null and available_at <= created_at
    and sequence < $2
    and status = 'PUBLISHING' and claim_expires_at <= now()
  order by sequence
  limit $3
  for update skip locked
), due as materialized (
  select ctid as place
  from {{.schema}}.events
  where published_at is null and available_at > created_at and available_at <= now()
    and status = 'PUBLISHING' and claim_expires_at <= now()
  order by available_at
  limit $3
  for update skip locked
)
update {{.schema}}.events e
set status = case when attempts >= $1 then 'DEAD' else 'FAILED' end,
    available_at = case when attempts >= $1 then 'infinity'
                        else greatest(clock_timestamp(), created_at + interval '1 microsecond') end,
    lease_expiries = lease_expiries + 1, claim_id = null, claim_expires_at = null,
    last_error = 'lease expired without an outcome: the relay that had claimed this event died or was stopped (claim ' || claim_id || ')'
from (select place from fresh union all select place from due) lost
where e.ctid = lost.place
returning e.id, e.event_type, e.aggregate_id, e.attempts, e.status
