package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// ledger is what writers committed, and what they rolled back. Its methods may be called from any goroutine.
type ledger struct {
	mu         sync.Mutex
	next       int
	committed  map[uuid.UUID]entry
	rolledBack map[uuid.UUID]entry
}

type entry struct {
	number int       // in the payload too
	at     time.Time // when COMMIT or ROLLBACK had returned, or when it is due, if that is later
}

func newLedger() *ledger {
	return &ledger{committed: map[uuid.UUID]entry{}, rolledBack: map[uuid.UUID]entry{}}
}

// reserve gives n numbers that nobody else has.
func (l *ledger) reserve(n int) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	numbers := make([]int, n)
	for i := range numbers {
		l.next++
		numbers[i] = l.next
	}
	return numbers
}

// add records events whose transaction has just ended.
func (l *ledger) add(to map[uuid.UUID]entry, written map[uuid.UUID]int) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, number := range written {
		to[id] = entry{number, now}
	}
}

// addRows records the rows (id, number, available_at) of a statement that was its own transaction.
func (l *ledger) addRows(rows pgx.Rows) error {
	written := map[uuid.UUID]entry{}
	var id [16]byte
	var e entry
	_, err := pgx.ForEachRow(rows, []any{&id, &e.number, &e.at}, func() error {
		written[id] = e
		return nil
	})
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, e := range written {
		if e.at.Before(now) {
			e.at = now
		}
		l.committed[id] = e
	}
	return err
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.committed)
}

// transaction writes events one statement at a time, does the business logic, and ends.
type transaction struct {
	events   int
	business func() // nil: none
	rollback bool
}

func lasting(d time.Duration) func() { return func() { time.Sleep(d) } }

// writer is a connection that commits events, one transaction after another. It belongs to one goroutine.
type writer struct {
	o      *outbox
	conn   *pgx.Conn
	ledger *ledger
}

func (w *writer) write(ctx context.Context, t transaction) error {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	written := map[uuid.UUID]int{}
	for _, number := range w.ledger.reserve(t.events) {
		var id [16]byte
		err := tx.QueryRow(ctx, `insert into `+w.o.events+` (aggregate_type, aggregate_id, event_type, payload)
			values ('test', $1, 'test.event', json_build_object('number', $2::int)) returning id`,
			fmt.Sprint(number%10), number).Scan(&id)
		if err != nil {
			return fmt.Errorf("inserting: %w", err)
		}
		written[id] = number
	}
	if t.business != nil {
		t.business()
	}
	if t.rollback {
		if err := tx.Rollback(ctx); err != nil {
			return fmt.Errorf("rolling back: %w", err)
		}
		w.ledger.add(w.ledger.rolledBack, written)
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("committing: %w", err)
	}
	w.ledger.add(w.ledger.committed, written)
	return nil
}

// writers runs n of them at once, each on a connection of its own. wait returns when work has returned for all.
func (o *outbox) writers(l *ledger, n int, work func(context.Context, *writer) error) (wait func()) {
	o.tb.Helper()
	group, ctx := errgroup.WithContext(o.tb.Context())
	for range n {
		w := &writer{o: o, conn: o.connect(), ledger: l}
		group.Go(func() error {
			defer func() { _ = w.conn.Close(context.Background()) }()
			return work(ctx, w)
		})
	}
	wait = sync.OnceFunc(func() {
		o.tb.Helper()
		if err := group.Wait(); err != nil && o.tb.Context().Err() == nil {
			o.tb.Fatal(err)
		}
	})
	o.tb.Cleanup(wait)
	return wait
}

// stream lets writers commit now and then, with some rollbacks among it, until stop is called.
func (o *outbox) stream(l *ledger, n int, longestPause time.Duration) (stop func()) {
	o.tb.Helper()
	stopped := make(chan struct{})
	wait := o.writers(l, n, func(ctx context.Context, w *writer) error {
		for ctx.Err() == nil {
			select {
			case <-stopped:
				return nil
			default:
			}
			t := transaction{events: 1 + rand.IntN(5), business: lasting(rand.N(longestPause + 1)), rollback: rand.IntN(10) == 0}
			if err := w.write(ctx, t); err != nil {
				return err
			}
		}
		return nil
	})
	return sync.OnceFunc(func() { close(stopped); wait() })
}

// reconcile waits until all that was committed is consumed, and wants nothing else to be. It returns how many deliveries
// were repeats.
func (o *outbox) reconcile(l *ledger, c *consumer) (duplicates int) {
	o.tb.Helper()
	o.eventually(patience, "every committed event consumed", func() bool { return c.events() >= l.count() })
	o.allPublished()
	l.mu.Lock()
	defer l.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range l.committed {
		if len(c.deliveries[id]) == 0 {
			o.tb.Errorf("lost: event %s, number %d, was committed and never consumed", id, e.number)
		}
	}
	for id, deliveries := range c.deliveries {
		e, ok := l.committed[id]
		if _, rolledBack := l.rolledBack[id]; !ok {
			o.tb.Errorf("invented: event %s was consumed and not committed (rolled back: %t)", id, rolledBack)
			continue
		}
		for _, d := range deliveries {
			if d.number != e.number {
				o.tb.Errorf("mixed up: event %s has number %d, consumed %d", id, e.number, d.number)
			}
		}
		duplicates += len(deliveries) - 1
	}
	return duplicates
}

// within wants every event consumed so soon after its COMMIT had returned, or after it was due. Time in which the machine
// kept the probe waiting does not count.
func (o *outbox) within(limit time.Duration, l *ledger, c *consumer, p *probe) {
	o.tb.Helper()
	limit = p.fair(o.tb, limit)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	var delays []time.Duration // below 0 where the consumer was quicker than COMMIT's return
	var late []string
	excused := 0
	for id, e := range l.committed {
		if len(c.deliveries[id]) == 0 {
			o.tb.Fatalf("event %s was not consumed", id)
		}
		at := c.deliveries[id][0].at
		delay := at.Sub(e.at)
		delays = append(delays, delay)
		if delay <= limit {
			continue
		}
		// Thrice: what the whole machine was held up by leaves a backlog to work off.
		if held := p.heldUp(e.at, at); delay-3*held > limit {
			late = append(late, fmt.Sprintf("%s, %s: %s later, the probe was held up for %s", id, e.at.Format("15:04:05.000"), delay, held))
		} else {
			excused++
		}
	}
	slices.Sort(delays)
	n := len(delays)
	o.tb.Logf("%d events from commit to consumed: p50 %s, p99 %s, max %s; %d were late with the whole machine", n, delays[n/2],
		delays[n*99/100], delays[n-1], excused)
	if len(late) > 0 {
		slices.Sort(late)
		o.tb.Errorf("%d of %d events were consumed later than %s, as\n%s", len(late), n, limit,
			strings.Join(late[:min(len(late), 20)], "\n"))
	}
}
