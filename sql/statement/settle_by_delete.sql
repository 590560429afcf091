-- Deletes published events: what settling means when nothing is to be kept.
--   One for each event: $1 ids   $2 claim ids
delete from {{.schema}}.events e
using unnest($1::uuid[], $2::uuid[]) as o (id, claim_id)
where e.id = o.id and e.claim_id = o.claim_id and e.status = 'PUBLISHING'
