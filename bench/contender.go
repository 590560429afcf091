package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// A contender gets committed events from a database to a broker, each confirmed.
type contender interface {
	name() string
	// prepare creates its tables in the place's empty database.
	prepare(ctx context.Context, p *place) error
	// insert puts an event into tx.
	insert(ctx context.Context, tx pgx.Tx, payload []byte) error
	// fill commits the events from to from+n-1.
	fill(ctx context.Context, p *place, from, n int) error
	// start begins to relay to the place's exchange.
	start(ctx context.Context, p *place) (running, error)
}

// running is a contender at work.
type running interface {
	stop() error
}

// background is work of a goroutine that ends with its context.
type background struct {
	cancel context.CancelFunc
	done   chan error
}

func inBackground(ctx context.Context, work func(ctx context.Context) error) *background {
	ctx, cancel := context.WithCancel(ctx)
	b := &background{cancel: cancel, done: make(chan error, 1)}
	go func() { b.done <- work(ctx) }()
	return b
}

// stop ends the work and waits for it; being cancelled is no failure.
func (b *background) stop() error {
	b.cancel()
	if err := <-b.done; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
