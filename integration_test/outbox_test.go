package integration_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/sql"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

// patience is how long a test waits for what has no deadline of its own.
const patience = 60 * time.Second

// outbox is a test's migrated database and vhost.
type outbox struct {
	tb          testing.TB
	databaseURL string
	amqpURL     string
	schema      string
	events      string // the table, quoted
	exchange    string
	pool        *pgxpool.Pool // superuser's, for looks and meddling
}

func newOutbox(tb testing.TB) *outbox {
	tb.Helper()
	o := newEmptyOutbox(tb, "outbox")
	o.migrate()
	return o
}

// newEmptyOutbox has no tables yet.
func newEmptyOutbox(tb testing.TB, schema string) *outbox {
	tb.Helper()
	return newOutboxAt(tb, stacktest.Postgres(tb), schema)
}

// newOutboxAt is for a database that the test has made, and has no tables either.
func newOutboxAt(tb testing.TB, databaseURL, schema string) *outbox {
	tb.Helper()
	o := &outbox{
		tb: tb, databaseURL: databaseURL, amqpURL: stacktest.AMQP(tb),
		schema: schema, events: pgx.Identifier{schema, "events"}.Sanitize(),
		exchange: "outbox-" + strings.ToLower(rand.Text()[:8]), // the vhost may be shared
	}
	var err error
	if o.pool, err = pgxpool.New(tb.Context(), o.databaseURL); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(o.pool.Close)
	return o
}

func (o *outbox) migrate() {
	o.tb.Helper()
	conn := o.connect()
	defer func() { _ = conn.Close(context.Background()) }()
	if err := sql.Migrate(o.tb.Context(), conn, o.schema, nil); err != nil {
		o.tb.Fatal(err)
	}
}

// connect gives a connection that the caller closes.
func (o *outbox) connect() *pgx.Conn {
	o.tb.Helper()
	conn, err := pgx.Connect(o.tb.Context(), o.databaseURL)
	if err != nil {
		o.tb.Fatal(err)
	}
	return conn
}

func (o *outbox) exec(sql string, args ...any) {
	o.tb.Helper()
	if _, err := o.pool.Exec(o.tb.Context(), sql, args...); err != nil {
		o.tb.Fatalf("%s: %v", sql, err)
	}
}

// count runs a query that gives one number.
func (o *outbox) count(sql string, args ...any) (n int) {
	o.tb.Helper()
	if err := o.pool.QueryRow(o.tb.Context(), sql, args...).Scan(&n); err != nil {
		o.tb.Fatalf("%s: %v", sql, err)
	}
	return n
}

// insert commits n events of a type in one statement, ready at once, and records them.
func (o *outbox) insert(l *ledger, eventType string, n int) {
	o.tb.Helper()
	o.insertDue(l, eventType, n, "now()")
}

// insertDue does so with an expression for available_at, in which n numbers the statement's events from 1.
func (o *outbox) insertDue(l *ledger, eventType string, n int, availableAt string) {
	o.tb.Helper()
	numbers := l.reserve(n)
	rows, err := o.pool.Query(o.tb.Context(), `insert into `+o.events+` (aggregate_type, aggregate_id, event_type, payload, available_at)
		select 'test', 'a', $1, json_build_object('number', number), `+availableAt+`
		from unnest($2::int[]) with ordinality as o (number, n) returning id, (payload->>'number')::int, available_at`, eventType, numbers)
	if err == nil {
		err = l.addRows(rows)
	}
	if err != nil {
		o.tb.Fatal(err)
	}
}

// eventually polls until the condition holds.
func (o *outbox) eventually(within time.Duration, what string, is func() bool) {
	o.tb.Helper()
	eventually(o.tb, within, what, is)
}

func eventually(tb testing.TB, within time.Duration, what string, is func() bool) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); !is(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %s: %s", within, what)
		}
	}
}

// allPublished waits until nothing is left to do.
func (o *outbox) allPublished() {
	o.tb.Helper()
	o.eventually(patience, "every event PUBLISHED", func() bool {
		return o.count("select count(*) from "+o.events+" where status <> 'PUBLISHED'") == 0
	})
}
