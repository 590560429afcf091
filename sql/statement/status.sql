-- One row: counts by status as a JSON object, the age in seconds of the oldest event that could be sent now, seconds until
-- the next one is due, the schema's version.
select (select coalesce(json_object_agg(status, n), '{}')
        from (select status, count(*) as n from {{.schema}}.events group by status) c),
       (select extract(epoch from clock_timestamp() - min(created_at))::float8
        from {{.schema}}.events where published_at is null and available_at <= now() and status <> 'DEAD'),
       (select extract(epoch from min(available_at) - clock_timestamp())::float8
        from {{.schema}}.events
        where published_at is null and available_at > created_at and available_at < 'infinity' and status in ('PENDING', 'FAILED')),
       (select version from {{.schema}}.schema_version)
