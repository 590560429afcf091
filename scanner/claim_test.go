package scanner

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

// The order of the sequence is not the order of commits.
func TestLateCommitIsClaimedWithoutAScan(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := table.scanner(defaults())
	const insert = `insert into outbox.events (aggregate_type, aggregate_id, event_type, payload) values ('test', '1', 'late', '{}')`
	late, err := table.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	table.insert(100)
	claim, _ := table.claimFresh(s, plenty)
	if got := sequences(claim.Events); len(got) != 100 || got[0] != 2 || got[99] != 101 {
		t.Fatalf("claimed %v, want 2 to 101", got)
	}
	for range 3 { // the frontier moves on
		table.insert(1)
		if claim, _ := table.claimFresh(s, plenty); len(claim.Events) != 1 {
			t.Fatalf("claimed %v, want one event", sequences(claim.Events))
		}
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim, _ = table.claimFresh(s, plenty)
	if got := sequences(claim.Events); !slices.Equal(got, []int64{1}) {
		t.Errorf("claimed %v after the late commit, want 1", got)
	}
}

// What the model of frontier_test.go assumes of PostgreSQL, PostgreSQL has to do: transactions of several statements and
// savepoints, many of them rolled back, and two scanners that never look from the bottom.
func TestEveryCommitIsClaimedWithoutAScan(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	const writers, each = 8, 150
	var group errgroup.Group
	for range writers {
		conn := table.connect()
		group.Go(func() error {
			for range each {
				if err := randomTransaction(t.Context(), conn); err != nil {
					return err
				}
			}
			return nil
		})
	}
	written := make(chan error, 1)
	go func() { written <- group.Wait() }()

	var claimed sync.Map
	count := func(s *Scanner) (n int) {
		limit := Limit{Events: 1 + rand.IntN(20), Bytes: 1 << 20}
		look := func() (Claim, Look, error) { return s.ClaimFresh(t.Context(), false, limit) }
		if rand.IntN(2) == 0 {
			look = func() (Claim, Look, error) { return s.ClaimRung(t.Context(), limit) }
		}
		claim, _, err := look()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range claim.Events {
			if _, twice := claimed.LoadOrStore(e.ID, true); twice {
				t.Errorf("event %s was claimed twice", e.ID)
			}
		}
		return len(claim.Events)
	}
	one, other := table.scanner(defaults()), table.scanner(defaults())
	for writing := true; writing; {
		select {
		case err := <-written:
			if err != nil {
				t.Fatal(err)
			}
			writing = false
		default:
			count(one)
			count(other)
		}
	}
	for count(one) > 0 {
	}
	var left []int64
	rows, err := table.pool.Query(t.Context(), "select sequence from outbox.events where status = 'PENDING'")
	if err == nil {
		left, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("events were passed: %v of frontier %+v", left, one.frontier)
	}
}

func randomTransaction(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for range 1 + rand.IntN(3) {
		inner, err := tx.Begin(ctx) // a savepoint
		if err != nil {
			return err
		}
		if _, err := inner.Exec(ctx, `insert into outbox.events (aggregate_type, aggregate_id, event_type, payload)
			select 'test', '1', 'test.event', '{}' from generate_series(1, $1::int)`, 1+rand.IntN(3)); err != nil {
			return err
		}
		if rand.IntN(5) == 0 {
			err = inner.Rollback(ctx)
		} else {
			err = inner.Commit(ctx)
		}
		if err != nil {
			return err
		}
		time.Sleep(rand.N(5 * time.Millisecond)) // the business logic
	}
	if rand.IntN(5) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

func TestClaimKeepsItsLimits(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := table.scanner(defaults())
	table.insert(5)
	table.exec(`insert into outbox.events (aggregate_type, aggregate_id, event_type, payload)
		select 'test', '1', 'large', (select to_json(string_agg(md5(n || '.' || m), '')) from generate_series(1, 3000) m)
		from generate_series(1, 4) n`) // does not compress well
	for _, step := range []struct {
		limit Limit
		want  int
		cut   bool
	}{
		{Limit{Events: 2, Bytes: 1 << 20}, 2, true},
		{Limit{Events: 3, Bytes: 1 << 20}, 3, true},
		{Limit{Events: 10, Bytes: 250_000}, 2, true},
		{Limit{Events: 10, Bytes: 10}, 1, true}, // one always fits
		{Limit{Events: 10, Bytes: 10}, 1, false},
		{Limit{Events: 10, Bytes: 10}, 0, false},
	} {
		claim, _ := table.claimFresh(s, step.limit)
		if len(claim.Events) != step.want || claim.Cut != step.cut {
			t.Errorf("%+v: %d events, cut %t; want %d, %t", step.limit, len(claim.Events), claim.Cut, step.want, step.cut)
		}
	}
}

func TestScheduledEventsWaitForTheirTime(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := table.scanner(defaults())
	table.insert(1, "available_at", "now() + interval '1 hour'")
	table.insert(2, "available_at", "now() + interval '300 milliseconds'")
	claim, look := table.claimFresh(s, plenty)
	if len(claim.Events) != 0 || look.NextAt == nil || *look.NextAt > 300*time.Millisecond {
		t.Fatalf("%d events, the next in %v", len(claim.Events), look.NextAt)
	}
	table.eventually("the two are due", func() bool {
		due := table.claimDue(s, false)
		if len(due.Events) == 2 {
			claim = due
		} else if len(due.Events) != 0 {
			t.Fatalf("claimed %d", len(due.Events))
		}
		return len(due.Events) == 2
	})
	if early := one[bool](table, `select bool_or(claim_expires_at - interval '1 minute' < created_at + interval '300 milliseconds')
		from outbox.events where status = 'PUBLISHING'`); early {
		t.Error("claimed before they were due")
	}
	if _, look := table.claimFresh(s, plenty); look.NextAt == nil || *look.NextAt < 50*time.Second {
		t.Errorf("the next is due in %v, though the two are claimed and the third is an hour away", look.NextAt)
	}
}

// The payload arrives as it was given, whatever type the column has; jsonb normalizes.
func TestPayloadTypes(t *testing.T) {
	t.Parallel()
	const given = `{"b": 1e2,  "a":"é", "b": 2}`
	for _, test := range []struct{ column, contentType string }{
		{"json", "application/json"},
		{"jsonb", "application/json"},
		{"text", "text/plain; charset=utf-8"},
		{"bytea", "application/octet-stream"},
	} {
		t.Run(test.column, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			using := "payload::text::" + test.column
			if test.column == "bytea" {
				using = "convert_to(payload::text, 'UTF8')"
			}
			table.exec("alter table outbox.events alter payload type " + test.column + " using " + using)
			s := table.scanner(defaults())
			value := "'" + given + "'"
			if test.column == "bytea" {
				value = "convert_to(" + value + ", 'UTF8')"
			}
			table.exec(`insert into outbox.events (aggregate_type, aggregate_id, event_type, payload, content_type, headers, routing_key, exchange)
				values ('order', '17', 'order.placed', ` + value + `, null, null, null, null),
				('order', '17', 'order.placed', ` + value + `, 'x/y', '{"traceparent": "00-1"}', 'key', '')`)
			claim, _ := table.claimFresh(s, plenty)
			if len(claim.Events) != 2 {
				t.Fatalf("claimed %d", len(claim.Events))
			}
			bare, full := claim.Events[0], claim.Events[1]
			same := string(bare.Payload) == given
			if test.column == "jsonb" {
				same = json.Valid(bare.Payload) && bytes.Contains(bare.Payload, []byte(`"b": 2`))
			}
			if !same {
				t.Errorf("payload %s", bare.Payload)
			}
			if bare.ContentType != test.contentType || bare.Headers != nil || bare.RoutingKey != nil || bare.Exchange != nil {
				t.Errorf("got %+v", bare)
			}
			if full.ContentType != "x/y" || *full.RoutingKey != "key" || *full.Exchange != "" || !strings.Contains(string(full.Headers), "00-1") {
				t.Errorf("got %+v", full)
			}
			if full.Attempt != 1 || full.AggregateType != "order" || full.AggregateID != "17" || full.Type != "order.placed" {
				t.Errorf("got %+v", full)
			}
		})
	}
}

// A connection that ends in the middle is an error, of whichever statement, and not the end of the relay.
func TestLostConnectionIsAnError(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	proxy := stacktest.NewProxy(t, table.url)
	through := *table
	through.url = proxy.URL
	s := through.scanner(defaults())
	for name, statement := range map[string]func() error{
		"fresh": func() error { _, _, err := s.ClaimFresh(t.Context(), false, plenty); return err },
		"due":   func() error { _, err := s.ClaimDue(t.Context(), false, plenty); return err },
		"settle": func() error {
			_, err := s.Settle(t.Context(), []event.Settlement{{Status: event.Published}})
			return err
		},
		"renew":  func() error { return s.RenewLeases(t.Context(), []Held{{}}) },
		"expire": func() error { _, err := s.ExpireLeases(t.Context()); return err },
		"prune":  func() error { _, _, err := s.Prune(t.Context()); return err },
	} {
		table.eventually(name+" works", func() bool { return statement() == nil })
		lock, err := table.connect().Begin(t.Context())
		if err == nil {
			_, err = lock.Exec(t.Context(), "lock table outbox.events in access exclusive mode") // they wait for it
		}
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() { failed <- statement() }()
		table.eventually(name+" waits for the lock", func() bool {
			return one[int](table, "select count(*) from pg_locks where not granted") > 0
		})
		proxy.Cut()
		if err := <-failed; err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := lock.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		proxy.Resume(t)
	}
}
