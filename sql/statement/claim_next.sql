-- Claims the next event or two: claim_fresh without what only larger claims need, for a relay that was rung. It takes a
-- quarter less time.
--   $1 claim id   $2 lease, seconds   $3 where to start
-- Each row is a claimed event, and a look: snapshot, how many transactions had begun at or above its xmax, seconds until
-- the next event is due. No row: there was nothing to claim, and nothing is known.
update {{.schema}}.events e
set status = 'PUBLISHING', claim_id = $1, claim_expires_at = clock_timestamp() + make_interval(secs => $2), attempts = attempts + 1
from (
  select ctid as place
  from {{.schema}}.events
  where published_at is null and available_at <= created_at
    and sequence >= $3
    and status = 'PENDING' and available_at <= now()
  order by sequence
  limit 2
  for update skip locked
) next
where e.ctid = next.place
returning pg_current_snapshot()::text, age(pg_snapshot_xmax(pg_current_snapshot())::xid),
          (select extract(epoch from min(available_at) - clock_timestamp())::float8
           from {{.schema}}.events where published_at is null and available_at > created_at and available_at < 'infinity'),
          id, sequence, created_at, extract(epoch from clock_timestamp() - created_at)::float8, attempts, aggregate_type,
          aggregate_id, event_type, routing_key, exchange, content_type, headers, payload
