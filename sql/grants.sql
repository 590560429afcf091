-- What each of three roles needs, and no more. The names are examples; a superuser or the schema's owner runs this after
-- `outbox-relay migrate`, whose own role only has to own the schema.
create role outbox_writer;
create role outbox_relay;
create role outbox_operator;

-- Services: they only insert, also through enqueue(). They can't read what others wrote.
grant usage on schema {{.schema}} to outbox_writer;
grant insert on {{.schema}}.events to outbox_writer;

-- The relay: it claims (select, update), settles, and prunes (delete). Reading the sequence places its frontier.
grant usage on schema {{.schema}} to outbox_relay;
grant select, update, delete on {{.schema}}.events to outbox_relay;
grant select on sequence {{.schema}}.events_sequence_seq to outbox_relay;
grant select on {{.schema}}.schema_version to outbox_relay;

-- People on call: they look, put in a test event, and send again.
grant usage on schema {{.schema}} to outbox_operator;
grant select, insert, update on {{.schema}}.events to outbox_operator;
grant select on {{.schema}}.schema_version to outbox_operator;
grant pg_read_all_stats to outbox_operator; -- which relays are connected, and since when
