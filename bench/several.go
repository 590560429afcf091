package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// relays is so many outbox-relay processes on one table.
type relays struct {
	outbox
	n int
}

func (r relays) name() string { return fmt.Sprintf("%d relays", r.n) }

func (r relays) start(ctx context.Context, p *place) (running, error) {
	var all relayProcesses
	for range r.n {
		one, err := r.run(ctx, p)
		if err != nil {
			return nil, errors.Join(err, all.stop())
		}
		all = append(all, one)
	}
	return all, nil
}

type relayProcesses []*relayProcess

func (r relayProcesses) stop() error {
	var g errgroup.Group
	for _, one := range r {
		g.Go(one.stop)
	}
	return g.Wait()
}

// several drains one table with 1, 2 and 4 relays, and looks for sessions that wait for a lock.
func several(ctx context.Context, b *bench) error {
	n := b.size(100_000)
	return b.eachRound(ctx, func(ctx context.Context) error {
		var one float64
		for _, count := range []int{1, 2, 4} {
			err := b.at(ctx, classic, func(p *place) error {
				locks, err := p.watchLocks(ctx)
				if err != nil {
					return err
				}
				d, err := p.drainFilled(ctx, relays{n: count}, n, n)
				if err = errors.Join(err, locks.stop()); err != nil {
					return err
				}
				b.log("waits for locks: %v", locks.seen)
				if count == 1 {
					one = d.rate
					return nil
				}
				name := fmt.Sprintf("%d relays on one table, ", count)
				b.report.add(name+"drain, against one", "/s", d.rate, one, atLeast(1))
				b.report.add(name+"sessions seen waiting for a lock, looking every 5 ms", "", float64(locks.waits()), 0, atMost(0))
				b.report.add(name+"duplicates", "", float64(d.duplicates), 0, atMost(0))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// lockWatch looks every 5 ms for sessions that wait for a lock. One goroutine of its own, which stop ends and waits for.
type lockWatch struct {
	seen map[string]int // how often, by kind of lock and beginning of the statement; to be read after stop
	stop func() error
}

func (w *lockWatch) waits() (n int) {
	for _, times := range w.seen {
		n += times
	}
	return n
}

func (p *place) watchLocks(ctx context.Context) (*lockWatch, error) {
	conn, err := pgx.Connect(ctx, p.databaseURL)
	if err != nil {
		return nil, err
	}
	w := &lockWatch{seen: map[string]int{}}
	watching, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error {
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		for sleep(watching, 5*time.Millisecond) == nil {
			rows, err := conn.Query(ctx, `select wait_event || ': ' || left(ltrim(query), 60) from pg_stat_activity
				where datname = current_database() and wait_event_type = 'Lock'`)
			if err != nil {
				return err
			}
			waiting, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			for _, who := range waiting {
				w.seen[who]++
			}
		}
		return nil
	})
	w.stop = func() error { cancel(); return g.Wait() }
	return w, nil
}
