-- Claims fresh events upward from the frontier, in one walk of events_fresh.
--   $1 claim id   $2 lease, seconds   $3 most events   $4 most payload bytes (one event always fits)   $5 where to start
--   $6, $7 transactions that were open at an earlier look, and the lowest sequence that each could still commit: where one
--   has ended by this statement's own snapshot, the walk starts there.
-- The first row is the look: snapshot, how many transactions had begun at or above its xmax, the sequence's last value, how
-- many events were in reach, seconds until the next one is due. The other rows are the claimed events, in no order.
with look as materialized (
  select pg_current_snapshot() as snapshot,
         least($5::bigint, min(o.position) filter (where pg_visible_in_snapshot(o.xid, pg_current_snapshot()))) as start
  from unnest($6::xid8[], $7::bigint[]) as o (xid, position)
), reach as materialized (
  select ctid as place, sequence,
         case when pg_column_compression(payload) is null then pg_column_size(payload) else octet_length(payload::text) end as bytes
  from {{.schema}}.events
  where published_at is null and available_at <= created_at
    and sequence >= (select start from look)
    and status = 'PENDING' and available_at <= now()
  order by sequence
  limit $3
  for update skip locked
), fit as (
  select place
  from (select place, row_number() over w as n, sum(bytes) over w as bytes
        from reach window w as (order by sequence rows unbounded preceding)) running
  where bytes <= $4 or n = 1
), claimed as (
  update {{.schema}}.events e
  set status = 'PUBLISHING', claim_id = $1, claim_expires_at = clock_timestamp() + make_interval(secs => $2), attempts = attempts + 1
  from fit
  where e.ctid = fit.place
  returning e.*
)
select snapshot::text, age(pg_snapshot_xmax(snapshot)::xid), pg_sequence_last_value({{.sequence_literal}}::regclass),
       (select count(*) from reach),
       (select extract(epoch from min(available_at) - clock_timestamp())::float8
        from {{.schema}}.events where published_at is null and available_at > created_at and available_at < 'infinity'),
       null::uuid, null::bigint, null::timestamptz, null::float8, null::int, null, null, null, null, null, null, null::jsonb, null
from look
union all
select null, null, null, null, null,
       id, sequence, created_at, extract(epoch from clock_timestamp() - created_at)::float8, attempts, aggregate_type,
       aggregate_id, event_type, routing_key, exchange, content_type, headers, payload
from claimed
