-- The outbox: the table of events, the doorbell that wakes a sleeping relay, and outbox.enqueue.
-- Whoever waits for a lock here stands in front of all writers, so give up soon; `outbox-relay migrate` tries again.
set local lock_timeout = '3s';

-- A version 7 UUID (RFC 9562): 48 bits of milliseconds, then random bits. Time-ordered, so that the unique index of a big
-- table is written at its warm right edge. Eleven hexadecimal digits hold the milliseconds until the year 2527.
create function {{.schema}}.uuid_v7() returns uuid
language sql volatile parallel safe
as $$
  select ('0' || pg_catalog.to_hex((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::bigint)
          || '7' || pg_catalog.substr(pg_catalog.gen_random_uuid()::text, 16))::uuid
$$;

-- Two timestamps tell where an event is looked for, and neither changes while all goes well, so that a claim is a HOT
-- update: available_at <= created_at is a fresh event, found by its sequence; available_at > created_at is one that was
-- scheduled or has come back (retry, hand-back, redelivery), found by its time.
create table {{.schema}}.events (
  sequence         bigint      not null generated always as identity,
  created_at       timestamptz not null default now(),
  available_at     timestamptz not null default now(),
  published_at     timestamptz,
  claim_expires_at timestamptz,
  attempts         integer     not null default 0,
  lease_expiries   integer     not null default 0,
  id               uuid        not null default {{.schema}}.uuid_v7(),
  claim_id         uuid,
  status           text        not null default 'PENDING',
  aggregate_type   text        not null,
  aggregate_id     text        not null,
  event_type       text        not null,
  routing_key      text,
  exchange         text,
  content_type     text,
  headers          jsonb,
  last_error       text,
  payload          json        not null,
  constraint events_pkey primary key (id),
  constraint events_status_goes_with_timestamps check (
    case status
      when 'PUBLISHED' then published_at is not null
      when 'DEAD' then published_at is null and available_at = 'infinity'
      else status in ('PENDING', 'PUBLISHING', 'FAILED') and published_at is null and available_at < 'infinity'
    end)
) with (
  fillfactor = 45,                         -- room on the page for the claimed version of every row, so that claims are HOT
  autovacuum_vacuum_scale_factor = 0.02,   -- every event leaves two dead versions: vacuum by the small change
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 1
);

comment on column {{.schema}}.events.available_at is 'not claimed before; infinity once DEAD';
comment on column {{.schema}}.events.attempts is 'claims that count: an outage or a shutdown gives its attempt back';
comment on column {{.schema}}.events.lease_expiries is 'claims that ended without an outcome, because the relay died or slept';
comment on column {{.schema}}.events.claim_id is 'the claim that holds the event, or that published it';

create index events_fresh on {{.schema}}.events (sequence) where published_at is null and available_at <= created_at;
create index events_due on {{.schema}}.events (available_at) where published_at is null and available_at > created_at;

-- AMQP 0-9-1 carries these as short strings of 255 bytes at most; one byte more would end the relay's connection. A trigger
-- and not table constraints: PostgreSQL parses those anew for every statement that updates a row, and the relay's statements
-- change none of these columns. It is called only to refuse.
create function {{.schema}}.refuse() returns trigger language plpgsql as $$
declare
  field text;
  bytes integer;
begin
  select f.name, pg_catalog.octet_length(f.value) into field, bytes
  from (values ('event_type', new.event_type), ('aggregate_type', new.aggregate_type), ('aggregate_id', new.aggregate_id),
               ('routing_key', new.routing_key), ('exchange', new.exchange), ('content_type', new.content_type)) f (name, value)
  where pg_catalog.octet_length(f.value) > 255 or f.name = 'event_type' and f.value = ''
  limit 1;
  if field is null then
    raise exception 'headers must be a JSON object, not %', pg_catalog.jsonb_typeof(new.headers)
      using errcode = 'check_violation', schema = tg_table_schema, table = tg_table_name, column = 'headers',
            constraint = 'events_headers_fits_amqp';
  end if;
  raise exception '% must be 1 to 255 bytes long for AMQP, and is %', field, bytes
    using errcode = 'check_violation', schema = tg_table_schema, table = tg_table_name, column = field,
          constraint = 'events_' || field || '_fits_amqp';
end $$;
create trigger events_fits_amqp
  before insert or update of event_type, aggregate_type, aggregate_id, routing_key, exchange, content_type, headers
  on {{.schema}}.events for each row
  when (octet_length(new.event_type) not between 1 and 255
        or greatest(octet_length(new.aggregate_type), octet_length(new.aggregate_id), octet_length(new.routing_key),
                    octet_length(new.exchange), octet_length(new.content_type)) > 255
        or jsonb_typeof(new.headers) <> 'object')
  execute function {{.schema}}.refuse();

-- A transaction gets its xid before it takes its first sequence value. So whoever reads the sequence, and then sees in a
-- snapshot that all older transactions have ended, knows that nothing can still appear below that value: the frontier.
-- The condition does the work and is never true; no function is called.
create function {{.schema}}.nothing() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger events_xid_before_sequence before insert on {{.schema}}.events for each statement
  when (pg_catalog.pg_current_xact_id() is null)
  execute function {{.schema}}.nothing();

-- The doorbell. A relay that sleeps holds a shared advisory lock; a writer that can take the lock alone knows that nobody
-- sleeps and rings nobody, since NOTIFY makes commits stand in line. The channel is the schema's name, the payload empty.
create function {{.schema}}.ring() returns trigger language plpgsql as $$
begin
  perform pg_catalog.pg_notify(tg_table_schema, '');
  return null;
end $$;
create trigger events_doorbell after insert on {{.schema}}.events for each statement
  when (case when pg_catalog.pg_try_advisory_lock({{.doorbell}})
             then not pg_catalog.pg_advisory_unlock({{.doorbell}})
             else true end)
  execute function {{.schema}}.ring();

-- For those who would rather call than insert. Needs no more than INSERT on the table. Returns the event's id.
create function {{.schema}}.enqueue(
  aggregate_type text,
  aggregate_id   text,
  event_type     text,
  payload        json,
  headers        jsonb       default null,
  routing_key    text        default null,
  exchange       text        default null,
  available_at   timestamptz default null,
  id             uuid        default null,
  content_type   text        default null
) returns uuid
language plpgsql
as $$
declare
  event_id uuid := coalesce(id, {{.schema}}.uuid_v7());
begin
  insert into {{.schema}}.events
    (id, aggregate_type, aggregate_id, event_type, payload, headers, routing_key, exchange, available_at, content_type)
  values
    (event_id, enqueue.aggregate_type, enqueue.aggregate_id, enqueue.event_type, enqueue.payload, enqueue.headers,
     enqueue.routing_key, enqueue.exchange, coalesce(enqueue.available_at, now()), enqueue.content_type);
  return event_id;
end $$;
