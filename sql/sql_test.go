package sql_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-relay/outbox-relay/sql"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

// open gives a connection to an empty database of the test's own.
func open(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func migrated(t *testing.T) *pgx.Conn {
	t.Helper()
	conn := open(t, stacktest.Postgres(t))
	if err := sql.Migrate(t.Context(), conn, "outbox", nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, statement string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func one[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) (value T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

const insert = `insert into outbox.events (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'order.placed', '{}')`

func TestPrintedMigrationsAreWhatMigrateRuns(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"outbox", `it's "quoted" \ {{.}}`} {
		conn := open(t, stacktest.Postgres(t))
		var printed strings.Builder
		if err := sql.PrintMigrations(&printed, schema); err != nil {
			t.Fatal(err)
		}
		exec(t, conn, printed.String())
		err := sql.Migrate(t.Context(), conn, schema, func(version int32, name string) {
			t.Errorf("version %d, %s, was still to be applied", version, name)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestDefaultIDsAreVersion7AndInOrder(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	exec(t, conn, `insert into outbox.events (aggregate_type, aggregate_id, event_type, payload)
		select 'order', '1', 'order.placed', '{}' from generate_series(1, 5000)`)
	rows, err := conn.Query(t.Context(), "select id from outbox.events order by sequence")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil || len(ids) != 5000 {
		t.Fatalf("%d ids, %v", len(ids), err)
	}
	var last int64
	for _, raw := range ids {
		id := uuid.UUID(raw)
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
			t.Fatalf("%s has version %d and variant %s", id, id.Version(), id.Variant())
		}
		seconds, nanoseconds := id.Time().UnixTime()
		at := time.Unix(seconds, nanoseconds)
		if at.UnixMilli() < last || time.Since(at).Abs() > time.Minute {
			t.Fatalf("%s is of %s", id, at)
		}
		last = at.UnixMilli()
	}
}

func TestTableRefusesWhatCanNotBeSent(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	long, longest := strings.Repeat("é", 128), strings.Repeat("é", 127)+"x"
	for _, test := range []struct {
		column string
		value  any
		fits   bool
	}{
		{"event_type", "", false},
		{"event_type", long, false},
		{"event_type", longest, true},
		{"aggregate_type", long, false},
		{"aggregate_type", longest, true},
		{"aggregate_id", long, false},
		{"aggregate_id", "", true},
		{"routing_key", long, false},
		{"routing_key", "", true},
		{"routing_key", longest, true},
		{"exchange", long, false},
		{"exchange", "", true},
		{"content_type", long, false},
		{"content_type", longest, true},
		{"headers", `[]`, false},
		{"headers", `"text"`, false},
		{"headers", `null`, false},
		{"headers", `{"a": [1, {"b": null}]}`, true},
		{"status", "SENT", false},
		{"status", "PUBLISHED", false}, // without published_at
		{"status", "DEAD", false},      // but available
		{"payload", nil, false},
		{"payload", `{"a":`, false},
		{"payload", `{"a": "\u0000"}`, true}, // json takes it, jsonb does not
	} {
		event := map[string]any{"aggregate_type": "order", "aggregate_id": "1", "event_type": "order.placed", "payload": "{}"}
		event[test.column] = test.value
		var columns []string
		var values []any
		for column, value := range event {
			columns, values = append(columns, column), append(values, value)
		}
		marks := []string{"$1", "$2", "$3", "$4", "$5"}[:len(columns)]
		_, err := conn.Exec(t.Context(), "insert into outbox.events ("+strings.Join(columns, ", ")+") values ("+strings.Join(marks, ", ")+")",
			append([]any{pgx.QueryExecModeExec}, values...)...)
		if fits := err == nil; fits != test.fits {
			t.Errorf("%s = %.20q: %v", test.column, test.value, err)
		}
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && strings.HasSuffix(pgErr.ConstraintName, "_fits_amqp") && pgErr.ColumnName != test.column {
			t.Errorf("%s: the error names the column %q", test.column, pgErr.ColumnName)
		}
	}
}

// The frontier stands on this: a transaction has its xid before it takes its first sequence value.
func TestXidComesBeforeTheSequence(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	exec(t, conn, `create function pg_temp.id() returns uuid language plpgsql as $$ begin
		if pg_current_xact_id_if_assigned() is null then raise 'no xid yet'; end if; return gen_random_uuid(); end $$`)
	exec(t, conn, "alter table outbox.events alter id set default pg_temp.id()") // evaluated along with the sequence
	exec(t, conn, insert)
	exec(t, conn, "alter table outbox.events disable trigger events_xid_before_sequence")
	if _, err := conn.Exec(t.Context(), insert); err == nil {
		t.Error("without the trigger it has one, too: the test shows nothing")
	}
}

// Writers ring when the doorbell's lock is held and only then, in whatever way they write and whatever their search_path.
func TestDoorbell(t *testing.T) {
	t.Parallel()
	url := stacktest.Postgres(t)
	writer, relay := open(t, url), open(t, url)
	for _, schema := range []string{"outbox", "Other"} {
		if err := sql.Migrate(t.Context(), writer, schema, nil); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, writer, `create schema evil;
		create function evil.pg_notify(text, text) returns void language plpgsql as $$ begin raise 'called'; end $$;
		create function evil.pg_try_advisory_lock(bigint) returns bool language plpgsql as $$ begin raise 'called'; end $$;
		create function evil.hashtextextended(text, bigint) returns bigint language plpgsql as $$ begin raise 'called'; end $$;`)
	exec(t, relay, `listen outbox; listen "Other"`)

	ways := map[string]func(){
		"insert":    func() { exec(t, writer, insert) },
		"many rows": func() { exec(t, writer, insert+`, ('order', '2', 'order.placed', '{}')`) },
		"enqueue":   func() { exec(t, writer, `select outbox.enqueue('order', '1', 'order.placed', '{}')`) },
		"search_path": func() {
			exec(t, writer, "set search_path = evil, pg_catalog")
			exec(t, writer, insert)
			exec(t, writer, "reset search_path")
		},
		"no search_path": func() {
			exec(t, writer, "set search_path = ''")
			exec(t, writer, insert)
			exec(t, writer, "reset search_path")
		},
		"copy": func() {
			rows := pgx.CopyFromRows([][]any{{"order", "1", "order.placed", []byte("{}")}})
			columns := []string{"aggregate_type", "aggregate_id", "event_type", "payload"}
			if _, err := writer.CopyFrom(t.Context(), pgx.Identifier{"outbox", "events"}, columns, rows); err != nil {
				t.Fatal(err)
			}
		},
	}
	heard := func() (channels []string) {
		t.Helper()
		exec(t, writer, "select pg_notify('outbox', 'up to here')")
		for {
			n, err := relay.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n.Payload == "up to here" {
				return channels
			}
			channels = append(channels, n.Channel+n.Payload)
		}
	}
	for name, write := range ways {
		write()
		if got := heard(); len(got) != 0 {
			t.Errorf("%s while nobody sleeps: %q", name, got)
		}
		exec(t, relay, "select pg_advisory_lock_shared($1)", sql.DoorbellLock("outbox"))
		write()
		if got := heard(); !slices.Equal(got, []string{"outbox"}) {
			t.Errorf("%s while a relay sleeps: %q", name, got)
		}
		exec(t, writer, strings.Replace(insert, "outbox", `"Other"`, 1))
		if got := heard(); len(got) != 0 {
			t.Errorf("%s: an insert into another outbox rings %q", name, got)
		}
		exec(t, relay, "select pg_advisory_unlock_shared($1)", sql.DoorbellLock("outbox"))
	}
	if held := one[int](t, writer, "select count(*) from pg_locks where locktype = 'advisory' and database = "+
		"(select oid from pg_database where datname = current_database())"); held != 0 {
		t.Errorf("%d advisory locks are left", held)
	}
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	const id = "0191e9a0-0000-7000-8000-000000000001"
	bare := one[[16]byte](t, conn, `select outbox.enqueue('order', '17', 'order.placed', '{"b":1, "b":2}')`)
	full := one[[16]byte](t, conn, `select outbox.enqueue(aggregate_type => 'order', aggregate_id => '17', event_type => 'order.placed',
		payload => '{}', headers => '{"a": 1}', routing_key => 'key', exchange => '', available_at => now() + interval '1 hour',
		id => '`+id+`', content_type => 'x/y')`)
	if uuid.UUID(full).String() != id || uuid.UUID(bare).Version() != 7 {
		t.Errorf("ids %s and %s", uuid.UUID(bare), uuid.UUID(full))
	}
	const row = `select concat_ws('|', aggregate_type, aggregate_id, event_type, payload, headers, routing_key, exchange, content_type,
		status, attempts, available_at - created_at) from outbox.events where id = $1`
	if got := one[string](t, conn, row, bare); got != `order|17|order.placed|{"b":1, "b":2}|PENDING|0|00:00:00` {
		t.Error(got)
	}
	if got := one[string](t, conn, row, full); got != `order|17|order.placed|{}|{"a": 1}|key||x/y|PENDING|0|01:00:00` {
		t.Error(got)
	}
	if _, err := conn.Exec(t.Context(), `select outbox.enqueue('order', '17', 'order.placed', '{}', id => '`+id+`')`); err == nil {
		t.Error("the same id twice")
	}
}

// A migration that can't have its lock must not make writers wait behind it for longer than a moment.
func TestMigrateWaitsItsTurnAndWritersDoNotWaitForIt(t *testing.T) {
	t.Parallel()
	url := stacktest.Postgres(t)
	conn := open(t, url)
	if err := sql.Migrate(t.Context(), conn, "outbox", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	holder, late := open(t, url), open(t, url)
	exec(t, holder, "select pg_advisory_lock(hashtextextended('outbox', 1))") // another migration
	go func() { done <- sql.Migrate(ctx, late, "outbox", nil) }()
	exec(t, conn, insert)
	select {
	case err := <-done:
		t.Fatalf("did not wait for the other migration: %v", err)
	default:
	}
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "other migrations") {
		t.Errorf("ended with %v", err)
	}
}
