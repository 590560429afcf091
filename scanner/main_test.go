package scanner

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/sql"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// table is a test's outbox, in a database of its own.
type table struct {
	tb   testing.TB
	url  string
	pool *pgxpool.Pool
}

func newTable(tb testing.TB) *table {
	tb.Helper()
	t := &table{tb: tb, url: stacktest.Postgres(tb)}
	conn := t.connect()
	if err := sql.Migrate(tb.Context(), conn, "outbox", nil); err != nil {
		tb.Fatal(err)
	}
	var err error
	if t.pool, err = pgxpool.New(tb.Context(), t.url); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(t.pool.Close)
	return t
}

// connect gives a connection that ends with the test.
func (t *table) connect() *pgx.Conn {
	t.tb.Helper()
	conn, err := pgx.Connect(t.tb.Context(), t.url)
	if err != nil {
		t.tb.Fatal(err)
	}
	t.tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func defaults() Options {
	return Options{Schema: "outbox", Lease: time.Minute, MaxAttempts: 20, Retention: 72 * time.Hour}
}

func (t *table) scanner(o Options) *Scanner {
	t.tb.Helper()
	config, err := pgxpool.ParseConfig(t.url)
	if err != nil {
		t.tb.Fatal(err)
	}
	s, err := New(t.tb.Context(), config, o)
	if err != nil {
		t.tb.Fatal(err)
	}
	t.tb.Cleanup(s.Close)
	return s
}

func (t *table) exec(sql string, args ...any) {
	t.tb.Helper()
	if _, err := t.pool.Exec(t.tb.Context(), sql, args...); err != nil {
		t.tb.Fatalf("%s: %v", sql, err)
	}
}

// insert commits n small events in one statement, and further columns with their values if such are given.
func (t *table) insert(n int, columnsAndValues ...string) {
	t.tb.Helper()
	columns, values := "", ""
	for i := 0; i < len(columnsAndValues); i += 2 {
		columns += ", " + columnsAndValues[i]
		values += ", " + columnsAndValues[i+1]
	}
	t.exec(`insert into outbox.events (aggregate_type, aggregate_id, event_type, payload`+columns+`)
		select 'test', n::text, 'test.event', '{}'`+values+` from generate_series(1, $1) n`, n)
}

// one gives the value that a query of one row and column gives.
func one[T any](t *table, sql string, args ...any) (value T) {
	t.tb.Helper()
	if err := t.pool.QueryRow(t.tb.Context(), sql, args...).Scan(&value); err != nil {
		t.tb.Fatalf("%s: %v", sql, err)
	}
	return value
}

// eventually polls what only time brings about.
func (t *table) eventually(what string, is func() bool) {
	t.tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.tb.Fatalf("not within %s: %s", patience, what)
		}
	}
}

var plenty = Limit{Events: 10_000, Bytes: 1 << 30}

func (t *table) claimFresh(s *Scanner, limit Limit) (Claim, Look) {
	t.tb.Helper()
	claim, look, err := s.ClaimFresh(t.tb.Context(), false, limit)
	if err != nil {
		t.tb.Fatal(err)
	}
	return claim, look
}

func (t *table) claimDue(s *Scanner, suspects bool) Claim {
	t.tb.Helper()
	claim, err := s.ClaimDue(t.tb.Context(), suspects, plenty)
	if err != nil {
		t.tb.Fatal(err)
	}
	return claim
}

func (t *table) expireLeases(s *Scanner) []Expired {
	t.tb.Helper()
	expired, err := s.ExpireLeases(t.tb.Context())
	if err != nil {
		t.tb.Fatal(err)
	}
	return expired
}

// settle writes back the same outcome for all events of a claim, and returns how many were lost.
func (t *table) settle(s *Scanner, claim Claim, outcome event.Settlement) int {
	t.tb.Helper()
	var settlements []event.Settlement
	for _, e := range claim.Events {
		outcome.ID, outcome.ClaimID = e.ID, claim.ID
		settlements = append(settlements, outcome)
	}
	lost, err := s.Settle(t.tb.Context(), settlements)
	if err != nil {
		t.tb.Fatal(err)
	}
	return lost
}

func sequences(events []event.Event) []int64 {
	var list []int64
	for _, e := range events {
		list = append(list, e.Sequence)
	}
	return list
}
