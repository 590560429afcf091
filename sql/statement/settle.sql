-- Writes back what became of claimed events, of one claim or several, whatever it was for each. An event that another claim
-- has taken in the meantime is left alone; saying PUBLISHED twice is harmless.
--   One for each event: $1 ids   $2 claim ids   $3 status   $4 delay, seconds   $5 attempts given back (0 or 1)   $6 error or null
update {{.schema}}.events e
set status = o.status,
    published_at = case when o.status = 'PUBLISHED' then clock_timestamp() end,
    available_at = case o.status when 'PUBLISHED' then e.available_at
                                 when 'DEAD' then 'infinity'
                                 else greatest(clock_timestamp() + make_interval(secs => o.delay),
                                               e.created_at + interval '1 microsecond') end,
    attempts = e.attempts - o.refund,
    claim_id = case when o.status = 'PUBLISHED' then e.claim_id end,
    claim_expires_at = null,
    last_error = coalesce(o.error, e.last_error)
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::float8[], $5::int[], $6::text[])
     as o (id, claim_id, status, delay, refund, error)
where e.id = o.id and e.claim_id = o.claim_id
  and (e.status = 'PUBLISHING' or e.status = 'PUBLISHED' and o.status = 'PUBLISHED')
