-- Deletes events that were published before the retention, within a range of the table's pages: no index is kept for this.
--   $1, $2 first and last place of the range (tid)   $3 retention, seconds
delete from {{.schema}}.events
where ctid >= $1::tid and ctid < $2::tid
  and status = 'PUBLISHED' and published_at < now() - make_interval(secs => $3)
