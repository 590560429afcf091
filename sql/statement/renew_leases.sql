-- Gives claims that are still being worked on a new lease.
--   $1 event ids   $2 claim ids, one for each   $3 lease, seconds
update {{.schema}}.events e
set claim_expires_at = clock_timestamp() + make_interval(secs => $3),
    available_at = case when available_at > created_at then clock_timestamp() + make_interval(secs => $3) else available_at end
from unnest($1::uuid[], $2::uuid[]) as h (id, claim_id)
where e.id = h.id and e.claim_id = h.claim_id and e.status = 'PUBLISHING'
