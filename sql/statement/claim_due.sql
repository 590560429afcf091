-- Claims events whose time has come: retries, hand-backs, scheduled ones. While claimed they stay in events_due, at the end
-- of their lease, so that the same look-up finds them if the relay dies.
--   $1 claim id   $2 lease, seconds   $3 most events   $4 most payload bytes (one event always fits)
--   $5 max attempts   $6 whether to take the suspects, and only them: events whose lease expired twice, or before their
--   last attempt. They are published alone, so that one that kills its relay takes no neighbour with it.
-- The first row tells how many events were in reach; the others are the claimed events, in no order.
with reach as materialized (
  select ctid as place, available_at, sequence,
         case when pg_column_compression(payload) is null then pg_column_size(payload) else octet_length(payload::text) end as bytes
  from {{.schema}}.events
  where published_at is null and available_at > created_at and available_at <= now()
    and status in ('PENDING', 'FAILED')
    and (lease_expiries >= 2 or lease_expiries = 1 and attempts + 1 >= $5) = $6
  order by available_at
  limit $3
  for update skip locked
), fit as (
  select place
  from (select place, row_number() over w as n, sum(bytes) over w as bytes
        from reach window w as (order by available_at, sequence rows unbounded preceding)) running
  where bytes <= $4 or n = 1
), claimed as (
  update {{.schema}}.events e
  set status = 'PUBLISHING', claim_id = $1, attempts = attempts + 1,
      claim_expires_at = clock_timestamp() + make_interval(secs => $2),
      available_at = greatest(clock_timestamp() + make_interval(secs => $2), created_at + interval '1 microsecond')
  from fit
  where e.ctid = fit.place
  returning e.*
)
select (select count(*) from reach),
       null::uuid, null::bigint, null::timestamptz, null::float8, null::int, null, null, null, null, null, null, null::jsonb, null
union all
select null,
       id, sequence, created_at, extract(epoch from clock_timestamp() - created_at)::float8, attempts, aggregate_type,
       aggregate_id, event_type, routing_key, exchange, content_type, headers, payload
from claimed
