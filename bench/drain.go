package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// drain is the rate at which a backlog goes out, from the first to the last message that the consumer has, against raw
// publishing with pipelined confirms to a queue of the same type.
func drain(ctx context.Context, b *bench) error {
	n := b.size(50_000)
	for _, step := range []struct {
		queue string
		goal  goal
	}{{classic, atLeast(0.95)}, {quorum, atLeast(0.9)}} {
		err := b.eachRound(ctx, func(ctx context.Context) error {
			before, err := b.drainFloor(ctx, step.queue, n)
			if err != nil {
				return fmt.Errorf("the floor: %w", err)
			}
			d, err := b.drainOf(ctx, outbox{}, step.queue, n)
			if err != nil {
				return err
			}
			after, err := b.drainFloor(ctx, step.queue, n)
			if err != nil {
				return fmt.Errorf("the floor: %w", err)
			}
			floor := (before + after) / 2
			b.report.add("drain, "+step.queue+" queue", "/s", d.rate, floor, step.goal)
			b.report.add("drain, "+step.queue+" queue, start of the process included", "/s", d.total, floor, noGoal)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) drainFloor(ctx context.Context, queue string, n int) (rate float64, err error) {
	err = b.at(ctx, queue, func(p *place) error {
		rate, err = p.rawDrain(ctx, n)
		b.log("floor of drain, %s queue: %.0f/s", queue, rate)
		return err
	})
	return rate, err
}

// drained is what a drain was like.
type drained struct {
	rate       float64         // events a second, from the first to the last that came
	total      float64         // the same from the start of the process
	first      time.Duration   // from the start of the process to the first that came
	arrivals   []time.Duration // when each came, in that order
	duplicates int64
}

func (b *bench) drainOf(ctx context.Context, c contender, queue string, n int) (d drained, err error) {
	err = b.at(ctx, queue, func(p *place) error {
		if err := c.prepare(ctx, p); err != nil {
			return err
		}
		if err := c.fill(ctx, p, 0, n, payloadSize); err != nil {
			return err
		}
		d, err = p.drain(ctx, c, n)
		b.log("drain of %d, %s queue, %s: %.0f/s; %.0f/s from its start, first after %d ms, %d duplicates", n, queue, c.name(),
			d.rate, d.total, d.first.Milliseconds(), d.duplicates)
		return err
	})
	return d, err
}

// drain starts the contender in front of a backlog and a consumer, and stops it when the consumer has n events.
func (p *place) drain(ctx context.Context, c contender, n int) (d drained, err error) {
	if err := p.settle(ctx); err != nil {
		return d, err
	}
	consumer, err := p.consume(n, n)
	if err != nil {
		return d, err
	}
	defer consumer.stop()
	start := now()
	stop, err := c.start(ctx, p)
	if err != nil {
		return d, err
	}
	err = consumer.await(ctx)
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return d, err
	}
	consumer.stop()
	d.arrivals = consumer.arrivals()
	last := d.arrivals[n-1]
	d.rate = consumer.rate()
	d.total = float64(n) / (last - start).Seconds()
	d.first = d.arrivals[0] - start
	d.duplicates = consumer.duplicates.Load()
	return d, nil
}

// arrivals lists when each event came, in that order; what did not come is left out.
func (c *consumer) arrivals() []time.Duration {
	sorted := slices.Sorted(slices.Values(c.at))
	none, _ := slices.BinarySearch(sorted, 1)
	return sorted[none:]
}

// rate is in events a second, from the first to the last that came.
func (c *consumer) rate() float64 {
	a := c.arrivals()
	return float64(len(a)-1) / (a[len(a)-1] - a[0]).Seconds()
}
