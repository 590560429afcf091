package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// place is the servers as the application sees them: directly, without proxies.
type place struct {
	databaseURL, amqpURL string
	quorum               bool
}

const (
	exchange = "outbox"
	queue    = "chaos"
)

// schema is the application's. A row in transactions is what a transaction changes beside its events, and tells of a
// transaction with an unknown outcome whether it was committed. An effect can be applied twice if the inbox lets it.
const schema = `
create schema chaos;
create table chaos.transactions (id bigint primary key, tombstone boolean not null default false);
create table chaos.inbox (event_id uuid primary key);
create table chaos.effects (number bigint not null);`

// writer commits events, one transaction after another, and tells the ledger. One goroutine runs it.
type writer struct {
	place  place
	ledger *ledger
	random *rand.Rand
	conn   *pgx.Conn // nil: to be connected
}

// run writes until ctx ends, and then settles what is in doubt, for which the database must come back.
func (w *writer) run(ctx context.Context) error {
	patient := context.WithoutCancel(ctx)
	defer func() {
		if w.conn != nil {
			_ = w.conn.Close(patient)
		}
	}()
	for ctx.Err() == nil {
		if err := w.connect(ctx); err != nil {
			continue
		}
		if err := w.transact(patient); err != nil {
			return err
		}
		pause(ctx, upTo(w.random, 80*time.Millisecond))
	}
	return nil
}

func (w *writer) connect(ctx context.Context) (err error) {
	if w.conn != nil {
		return nil
	}
	connecting, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if w.conn, err = pgx.Connect(connecting, w.place.databaseURL); err != nil {
		w.conn = nil
		pause(ctx, 100*time.Millisecond)
	}
	return err
}

// transaction is what one is going to do.
type transaction struct {
	id        int
	numbers   []int
	abandoned []int // behind a savepoint that is rolled back to
	due       map[int]time.Time
}

var errRollback = errors.New("rolled back on purpose")

// transact writes one transaction of a random kind. Only what the harness can't go on with is an error.
func (w *writer) transact(ctx context.Context) error {
	t := &transaction{id: w.ledger.transaction(), due: map[int]time.Time{}}
	tx, err := w.conn.Begin(ctx)
	if err == nil {
		if _, err = tx.Exec(ctx, "insert into chaos.transactions (id) values ($1)", t.id); err == nil {
			err = w.fill(ctx, tx, t)
		}
		if err == nil && w.random.IntN(10) == 0 {
			err = errRollback
		}
		if err == nil {
			w.ledger.committing(t.numbers)
			err = tx.Commit(ctx)
			return w.settle(ctx, t, err)
		}
		_ = tx.Rollback(ctx)
	}
	w.ledger.rolledBack(append(t.numbers, t.abandoned...)) // COMMIT was not sent
	if !errors.Is(err, errRollback) {
		w.lost()
	}
	return nil
}

// settle takes the answer to COMMIT. A lost answer is found out from the database: the tombstone waits for the
// transaction's end, if that is still to come, and where the transaction's row is not, keeps it from appearing.
func (w *writer) settle(ctx context.Context, t *transaction, err error) error {
	w.ledger.rolledBack(t.abandoned)
	committed := err == nil
	if err != nil && !errors.Is(err, pgx.ErrTxCommitRollback) {
		w.lost()
		deadline := time.Now().Add(settleTimeout)
		for {
			if time.Now().After(deadline) {
				return fmt.Errorf("the database does not tell whether transaction %d was committed: %w", t.id, err)
			}
			if err = w.connect(ctx); err != nil {
				continue
			}
			tag, err := w.conn.Exec(ctx,
				"insert into chaos.transactions (id, tombstone) values ($1, true) on conflict do nothing", t.id)
			if err == nil {
				committed = tag.RowsAffected() == 0
				break
			}
			w.lost()
		}
	}
	if committed {
		w.ledger.committed(t.numbers, t.due)
	} else {
		w.ledger.rolledBack(t.numbers)
	}
	return nil
}

// settleTimeout is how long a database may be away.
const settleTimeout = 3 * time.Minute

func (w *writer) lost() {
	if w.conn != nil {
		_ = w.conn.Close(context.Background())
		w.conn = nil
	}
}

// fill inserts the transaction's events.
func (w *writer) fill(ctx context.Context, tx pgx.Tx, t *transaction) error {
	switch kind := w.random.IntN(100); {
	case kind < 30:
		return w.insert(ctx, tx, t, 1)
	case kind < 55:
		return w.enqueue(ctx, tx, t, 0)
	case kind < 70:
		return w.insert(ctx, tx, t, 2+w.random.IntN(30))
	case kind < 71 && w.random.IntN(4) == 0:
		return w.insert(ctx, tx, t, 500+w.random.IntN(1000))
	case kind < 82:
		return w.savepoints(ctx, tx, t)
	case kind < 94:
		return w.enqueue(ctx, tx, t, upTo(w.random, 4*time.Second))
	default:
		if err := w.insert(ctx, tx, t, 1); err != nil {
			return err
		}
		pause(ctx, upTo(w.random, time.Second)) // the business logic
		return w.insert(ctx, tx, t, w.random.IntN(3))
	}
}

// insert writes n events in one statement.
func (w *writer) insert(ctx context.Context, tx pgx.Tx, t *transaction, n int) error {
	if n == 0 {
		return nil
	}
	first := w.ledger.reserve(n)
	for i := range n {
		t.numbers = append(t.numbers, first+i)
	}
	_, err := tx.Exec(ctx, `insert into outbox.events (aggregate_type, aggregate_id, event_type, payload)
		select 'chaos', n::text, 'chaos.batch', json_build_object('number', n, 'filler', repeat('x', $3))
		from generate_series($1::bigint, $2::bigint) n`, first, first+n-1, w.size(n))
	return err
}

// enqueue writes one event with the function, due after a delay.
func (w *writer) enqueue(ctx context.Context, tx pgx.Tx, t *transaction, delay time.Duration) error {
	number := w.ledger.reserve(1)
	t.numbers = append(t.numbers, number)
	if delay > 0 {
		t.due[number] = time.Now().Add(delay)
	}
	_, err := tx.Exec(ctx, `select outbox.enqueue('chaos', $1::bigint::text, 'chaos.single',
		json_build_object('number', $1::bigint, 'filler', repeat('x', $2)),
		available_at => case when $3::float8 > 0 then clock_timestamp() + make_interval(secs => $3) end)`,
		number, w.size(1), delay.Seconds())
	return err
}

// savepoints writes several statements, and rolls some of them back.
func (w *writer) savepoints(ctx context.Context, tx pgx.Tx, t *transaction) error {
	for range 1 + w.random.IntN(4) {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		kept := len(t.numbers)
		if err := w.insert(ctx, inner, t, 1+w.random.IntN(3)); err != nil {
			return err
		}
		if w.random.IntN(3) > 0 {
			err = inner.Commit(ctx)
		} else {
			err = inner.Rollback(ctx)
			t.abandoned = append(t.abandoned, t.numbers[kept:]...)
			t.numbers = t.numbers[:kept]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// size is that of a payload: mostly small, seldom so large that a few fill the relay's window.
func (w *writer) size(n int) int {
	switch {
	case n < 20 && w.random.IntN(500) == 0:
		return 2 << 20
	case n < 20 && w.random.IntN(50) == 0:
		return w.random.IntN(100_000)
	default:
		return w.random.IntN(500)
	}
}

func upTo(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most) + 1))
}
