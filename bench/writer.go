package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// pace says how writers insert: together at the rate, each of its transactions holding one event.
type pace struct {
	writers int
	rate    int // events a second, of all writers together
	length  time.Duration
}

func (w pace) events() int { return int(float64(w.rate) * w.length.Seconds()) }

// write runs the writers and returns, by event number, when each was about to be committed. Writers are evenly apart in
// time, each a quarter of its period early or late at random.
func (p *place) write(ctx context.Context, w pace, insert func(ctx context.Context, tx pgx.Tx, payload []byte) error) (
	[]time.Duration, error,
) {
	committing := make([]time.Duration, w.events())
	period := time.Duration(w.writers) * time.Second / time.Duration(w.rate)
	var g errgroup.Group
	start := now() + 100*time.Millisecond // all are connected by then
	for i := range w.writers {
		g.Go(func() error {
			conn, err := pgx.Connect(ctx, p.databaseURL)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			due := start + period*time.Duration(i)/time.Duration(w.writers)
			for n := i; n < len(committing); n += w.writers {
				jitter := time.Duration(rand.Int64N(int64(period)/2+1)) - period/4
				time.Sleep(due + jitter - now())
				due += period
				tx, err := conn.Begin(ctx)
				if err != nil {
					return err
				}
				if err := insert(ctx, tx, payload(n)); err != nil {
					return err
				}
				committing[n] = now()
				if err := tx.Commit(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return committing, g.Wait()
}

// sleep returns early, with an error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
