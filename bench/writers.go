package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// plainTable has the outbox's columns and defaults, and its primary key: no trigger, no other index, no check.
const plainTable = `create table plain (like outbox.events including defaults including identity);
	alter table plain add primary key (id)`

// notifyingTable is the same with the trigger of every tutorial.
const notifyingTable = plainTable + `;
	create function notify() returns trigger language plpgsql as $$ begin perform pg_notify('plain', ''); return null; end $$;
	create trigger notify after insert on plain for each statement execute function notify()`

const insertPlain = `insert into plain (aggregate_type, aggregate_id, event_type, payload)
	values ('order', 'order-42', 'order.created', $1)`

// writers is what an outbox costs those who insert: single-row transactions as fast as they go, against the same inserts
// into a plain table.
func writers(ctx context.Context, b *bench) error {
	for _, n := range []int{16, 64} {
		name := fmt.Sprintf("%d writers, ", n)
		err := b.eachRound(ctx, func(ctx context.Context) error {
			before, err := b.commits(ctx, n, plainTable, insertPlain)
			if err != nil {
				return err
			}
			stopped, err := b.commits(ctx, n, "", insertEvent)
			if err != nil {
				return err
			}
			awake, err := b.flowing(ctx, n, outbox{}, "", insertEvent)
			if err != nil {
				return err
			}
			notifying, err := b.commits(ctx, n, notifyingTable, insertPlain)
			if err != nil {
				return err
			}
			after, err := b.commits(ctx, n, plainTable, insertPlain)
			if err != nil {
				return err
			}
			plain := (before + after) / 2
			b.report.add(name+"outbox, no relay running", "commits/s", stopped, plain, atLeast(0.9))
			b.report.add(name+"outbox, relay, broker and consumer at work", "commits/s", awake.committed, plain, noGoal)
			b.report.add(name+"trigger that always notifies, nobody listening", "commits/s", notifying, plain, noGoal)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// everything is writers without a bound, relay, broker and consumer together. What the bell costs is seen against a
// relay that only polls, every millisecond while it is busy, on a table without the doorbell.
func everything(ctx context.Context, b *bench) error {
	const n = 16
	return b.eachRound(ctx, func(ctx context.Context) error {
		polling, err := b.flowing(ctx, n, outbox{flags: []string{"--wake=none", "--scan-interval=10ms"}},
			"drop trigger events_doorbell on outbox.events", insertEvent)
		if err != nil {
			return err
		}
		f, err := b.flowing(ctx, n, outbox{}, "", insertEvent)
		if err != nil {
			return err
		}
		loop, err := b.flowing(ctx, n, notifyLoop{}, "", insertNotifyLoop)
		if err != nil {
			return err
		}
		const name = "everything running, 16 writers, "
		b.report.add(name+"committed, against no doorbell and polling", "/s", f.committed, polling.committed, atLeast(0.85))
		b.report.add(name+"committed, against a NOTIFY loop", "/s", f.committed, loop.committed, atLeast(3))
		b.report.add(name+"delivered, against a NOTIFY loop", "/s", f.delivered, loop.delivered, noGoal)
		b.report.add(name+"delivered, against committed", "/s", f.delivered, f.committed, atLeast(0.97))
		b.report.add(name+"backlog at the end", "seconds' worth", f.backlog/f.committed, 0, atMost(1))
		return nil
	})
}

// commits is the rate of commits while nothing but the writers runs.
func (b *bench) commits(ctx context.Context, writers int, setUp, statement string) (perSecond float64, err error) {
	err = b.at(ctx, classic, func(p *place) error {
		if err := p.prepareOutbox(ctx, setUp); err != nil {
			return err
		}
		var numbers atomic.Int64
		r, err := p.press(ctx, writers, statement, &numbers, nil)
		perSecond = r.committed
		b.log("%d writers, %.40q: %.0f commits/s", writers, statement, perSecond)
		return err
	})
	return perSecond, err
}

// flowing is the same with a contender, broker and consumer at work. All that was committed has to be consumed in the end,
// unless the contender is too slow to be waited for.
func (b *bench) flowing(ctx context.Context, writers int, c contender, setUp, statement string) (r pressed, err error) {
	const capacity = 2_000_000
	err = b.at(ctx, classic, func(p *place) error {
		if err := c.prepare(ctx, p); err != nil {
			return err
		}
		if _, err := p.db.Exec(ctx, setUp, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		f, err := p.begin(ctx, c, capacity)
		if err != nil {
			return err
		}
		var numbers atomic.Int64
		r, err = p.press(ctx, writers, statement, &numbers, f.consumer)
		if _, ours := c.(outbox); ours && err == nil {
			err = f.await(ctx, int(numbers.Load()))
		}
		b.log("%d writers, %s %q: %.0f committed/s, %.0f delivered/s, backlog %.0f, %d duplicates",
			writers, c.name(), setUp, r.committed, r.delivered, r.backlog, f.consumer.duplicates.Load())
		return errors.Join(err, f.end())
	})
	return r, err
}

func (p *place) prepareOutbox(ctx context.Context, setUp string) error {
	if err := (outbox{}).prepare(ctx, p); err != nil {
		return err
	}
	if _, err := p.db.Exec(ctx, setUp, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	return p.settle(ctx)
}

// pressed is what writers without a bound did: rates a second, and what was committed and not yet delivered at the end.
type pressed struct{ committed, delivered, backlog float64 }

// press lets writers commit single-row transactions as fast as they can, and measures after a warm-up.
func (p *place) press(ctx context.Context, writers int, statement string, numbers *atomic.Int64, c *consumer) (r pressed, err error) {
	warmUp, length := p.bench.duration(2*time.Second), p.bench.duration(8*time.Second)
	var committed atomic.Int64
	delivered := func() int64 {
		if c == nil {
			return 0
		}
		return c.unique.Load() - 1 // the one of the flow's beginning
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	g, writing := errgroup.WithContext(writing)
	for range writers {
		g.Go(func() error {
			return p.insertUntil(ctx, writing.Done(), statement, numbers, &committed)
		})
	}
	err = sleep(writing, warmUp)
	c0, d0, t0 := committed.Load(), delivered(), now()
	if err == nil {
		err = sleep(writing, length)
	}
	c1, d1, t1 := committed.Load(), delivered(), now()
	stop()
	if failed := g.Wait(); failed != nil {
		err = failed
	}
	seconds := (t1 - t0).Seconds()
	return pressed{float64(c1-c0) / seconds, float64(d1-d0) / seconds, float64(c1 - d1)}, err
}

// insertUntil is one writer, on a connection of its own and with as little around the protocol as can be.
func (p *place) insertUntil(ctx context.Context, done <-chan struct{}, statement string, numbers, committed *atomic.Int64) error {
	conn, err := pgconn.Connect(ctx, p.databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Prepare(ctx, "insert", statement, nil); err != nil {
		return err
	}
	for {
		select {
		case <-done:
			return nil
		default:
		}
		n := int(numbers.Add(1) - 1)
		if result := conn.ExecPrepared(ctx, "insert", [][]byte{payload(n)}, nil, nil).Read(); result.Err != nil {
			return result.Err
		}
		committed.Add(1)
	}
}
