package integration_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/stack"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

// The three roles of sql/grants.sql have what they need. Roles belong to a whole server, so this test has one of its own.
func TestRolesWithTheLeastPrivileges(t *testing.T) {
	t.Parallel()
	server := stacktest.Own(t, stack.Options{NoRabbitMQ: true})
	o := newOutboxAt(t, server.DatabaseURL, "outbox")
	code, printed := o.run("migrate", "--print")
	if code != 0 {
		t.Fatal(printed)
	}
	o.exec(printed)
	_, grants, _ := strings.Cut(printed, "-- Not run by migrate:")
	o.exec(strings.ReplaceAll(grants, "\n-- ", "\n"))
	as := func(user, role string) string {
		o.exec("create role " + user + " login in role " + role)
		return strings.Replace(server.DatabaseURL, "postgres@", user+"@", 1)
	}
	writer, relay, operator := as("shop", "outbox_writer"), as("relay", "outbox_relay"), as("ann", "outbox_operator")

	o.exec(`insert into outbox.events (aggregate_type, aggregate_id, event_type, payload, status, published_at)
		values ('order', '1', 'an old one', '{}', 'PUBLISHED', now() - interval '1 year')`)
	c := o.consume()
	running := o.via(relay, o.amqpURL).relay(noScan, "--lease=2s", "--confirm-timeout=1s").asleep(o)
	conn, err := pgx.Connect(t.Context(), writer)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, allowed := range []string{
		`insert into outbox.events (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'order.placed', '{"number": 1}')`,
		`select outbox.enqueue('order', '1', 'order.placed', '{"number": 2}')`,
		`select outbox.enqueue('order', '1', 'order.placed', '{"number": 3}', available_at => now() + interval '500 milliseconds')`,
	} {
		if _, err := conn.Exec(t.Context(), allowed); err != nil {
			t.Errorf("a writer's %s: %v", allowed, err)
		}
	}
	for _, forbidden := range []string{
		"select * from outbox.events", "update outbox.events set status = 'PENDING'", "delete from outbox.events",
		"truncate outbox.events", "insert into outbox.schema_version values (99)", "create table outbox.mine ()",
	} {
		if _, err := conn.Exec(t.Context(), forbidden); err == nil {
			t.Errorf("a writer may %s", forbidden)
		}
	}
	code, said := o.run("enqueue", "--database-url="+operator, "--aggregate-type=order", "--aggregate-id=1", "--event-type=order.placed",
		`--payload={"number": 4}`)
	if code != 0 {
		t.Errorf("an operator's enqueue: %s", said)
	}
	o.eventually(patience, "all are consumed", func() bool { return c.events() == 4 })
	o.allPublished()
	if code, said := o.run("status", "--database-url="+operator); code != 0 || !strings.Contains(said, "relays connected:") {
		t.Errorf("an operator's status: exit code %d and %s", code, said)
	}
	o.eventually(patience, "the old one is pruned", func() bool {
		return o.count("select count(*) from outbox.events where event_type = 'an old one'") == 0
	})
	running.stop()
	if strings.Contains(running.log.String(), "permission denied") {
		t.Error("the relay lacks a privilege")
	}
}
