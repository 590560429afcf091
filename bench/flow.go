package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// flow is a contender at work, whose tables stand, with a consumer behind it.
type flow struct {
	place     *place
	contender contender
	running   running
	consumer  *consumer
	awaited   int // events so far
}

// begin starts consumer and contender, for events numbered below n, and sends one more to see that everything is
// connected. A second of rest lets the contender find out that nothing more is there. The caller ends the flow.
func (p *place) begin(ctx context.Context, c contender, n int) (*flow, error) {
	f := &flow{place: p, contender: c}
	var err error
	if f.consumer, err = p.consume(n + 1); err != nil {
		return nil, err
	}
	if f.running, err = c.start(ctx, p); err != nil {
		f.consumer.stop()
		return nil, err
	}
	if err = c.fill(ctx, p, n, 1); err == nil {
		err = f.await(ctx, 1)
	}
	if err == nil {
		err = sleep(ctx, time.Second)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s does not send a first event: %w", c.name(), err), f.end())
	}
	return f, nil
}

// await waits until n events more than before have come.
func (f *flow) await(ctx context.Context, n int) error {
	f.awaited += n
	return f.consumer.await(ctx, f.awaited)
}

func (f *flow) end() error {
	err := f.running.stop()
	f.consumer.stop()
	return err
}
