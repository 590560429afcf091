package main

import (
	"context"
	"errors"
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
			name := "drain, " + step.queue + " queue"
			floor := (before + after) / 2
			b.report.add(name, "/s", d.rate, floor, step.goal)
			b.report.add(name+", start of the process included", "/s", d.total, floor, noGoal)
			b.report.add(name+", CPU of the relay", "µs an event", each(d.cpu, n), 0, noGoal)
			b.report.add(name+", CPU of PostgreSQL", "µs an event", each(d.servers.postgres, n), 0, noGoal)
			b.report.add(name+", CPU of RabbitMQ", "µs an event", each(d.servers.rabbitmq, n), 0, noGoal)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) drainFloor(ctx context.Context, queue string, n int) (perSecond float64, err error) {
	err = b.at(ctx, queue, func(p *place) error {
		perSecond, err = p.rawDrain(ctx, n)
		b.log("floor of drain, %s queue: %.0f/s", queue, perSecond)
		return err
	})
	return perSecond, err
}

// drained is what a drain was like.
type drained struct {
	rate       float64         // events a second, from the first to the last that came
	total      float64         // the same from the start of the process
	first      time.Duration   // from the start of the process to the first that came
	arrivals   []time.Duration // when each came, in that order
	duplicates int64
	servers    used
	cpu        time.Duration // of the relay, where it is a process of its own
	memory     float64       // its peak, in MiB
}

func (d drained) String() string {
	return fmt.Sprintf("%.0f/s; %.0f/s from its start, first after %d ms, %d duplicates", d.rate, d.total,
		d.first.Milliseconds(), d.duplicates)
}

// drainOf measures a contender in a place of its own.
func (b *bench) drainOf(ctx context.Context, c contender, queue string, n int) (d drained, err error) {
	err = b.at(ctx, queue, func(p *place) error {
		if err := c.prepare(ctx, p); err != nil {
			return err
		}
		if err := c.fill(ctx, p, 0, n); err != nil {
			return err
		}
		d, err = p.drain(ctx, c, n, n)
		b.log("drain of %d, %s queue, %s: %s", n, queue, c.name(), d)
		return err
	})
	return d, err
}

// drain starts the contender in front of a backlog and a consumer, and stops it when the consumer has n events.
func (p *place) drain(ctx context.Context, c contender, backlog, n int) (d drained, err error) {
	if err := p.settle(ctx); err != nil {
		return d, err
	}
	consumer, err := p.consume(backlog)
	if err != nil {
		return d, err
	}
	defer consumer.stop()
	before, err := p.bench.used()
	if err != nil {
		return d, err
	}
	start := now()
	r, err := c.start(ctx, p)
	if err != nil {
		return d, err
	}
	err = consumer.await(ctx, n)
	if err == nil {
		err = d.count(p.bench, before, r)
	}
	if err = errors.Join(err, r.stop()); err != nil {
		return d, err
	}
	consumer.stop()
	d.arrivals = consumer.arrivals()[:n]
	d.rate = rate(d.arrivals)
	d.total = float64(n) / (d.arrivals[n-1] - start).Seconds()
	d.first = d.arrivals[0] - start
	d.duplicates = consumer.duplicates.Load()
	return d, nil
}

// count notes what was used since before.
func (d *drained) count(b *bench, before used, r running) error {
	after, err := b.used()
	if err != nil {
		return err
	}
	d.servers = used{after.postgres - before.postgres, after.rabbitmq - before.rabbitmq}
	relay, ok := r.(*relayProcess)
	if !ok {
		return nil
	}
	if d.cpu, err = cpuTime(relay.pid, false); err != nil {
		return err
	}
	d.memory, err = peakMemory(relay.pid)
	return err
}

// firstFifth and lastFifth are the rates in those parts of the events.
func (d drained) firstFifth() float64 { return rate(d.arrivals[:len(d.arrivals)/5]) }
func (d drained) lastFifth() float64  { return rate(d.arrivals[len(d.arrivals)*4/5:]) }

// arrivals lists when each event came, in that order; what did not come is left out.
func (c *consumer) arrivals() []time.Duration {
	sorted := slices.Sorted(slices.Values(c.at))
	none, _ := slices.BinarySearch(sorted, 1)
	return sorted[none:]
}

// rate of arrivals that are in order, a second.
func rate(a []time.Duration) float64 {
	return float64(len(a)-1) / (a[len(a)-1] - a[0]).Seconds()
}
