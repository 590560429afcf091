-- The relays connected to this database for this schema: name, since when, number of sessions.
--   $1 how their application_name begins
select substr(application_name, length($1) + 1), min(backend_start), count(*)
from pg_stat_activity
where datname = current_database() and starts_with(application_name, $1)
group by 1
order by 1
