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
		before, err := b.used()
		if err != nil {
			return err
		}
		if perSecond, err = p.rawDrain(ctx, n); err != nil {
			return err
		}
		after, err := b.used()
		u := after.since(before)
		b.log("floor of drain, %s queue: %.0f/s; CPU an event: RabbitMQ %.1f, publisher and consumer %.1f µs", queue, perSecond,
			each(u.rabbitmq, n), each(u.bench, n))
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
	table      string        // what became of outbox-relay's table; empty: not its
}

func (d drained) String() string {
	return fmt.Sprintf("%.0f/s; %.0f/s from its start, first after %d ms, %d duplicates%s", d.rate, d.total,
		d.first.Milliseconds(), d.duplicates, d.table)
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
		b.log("drain of %d, %s queue, %s: %s; CPU an event: relay %.1f, PostgreSQL %.1f, RabbitMQ %.1f, this program %.1f µs",
			n, queue, c.name(), d, each(d.cpu, n), each(d.servers.postgres, n), each(d.servers.rabbitmq, n), each(d.servers.bench, n))
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
	d.table, err = p.tableStats(ctx)
	return d, err
}

// count notes what was used since before.
func (d *drained) count(b *bench, before used, r running) error {
	after, err := b.used()
	if err != nil {
		return err
	}
	d.servers = after.since(before)
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

// tableStats tells how many updates were HOT and how large the table is. Sessions report when they end, so the relay must
// have been stopped.
func (p *place) tableStats(ctx context.Context) (stats string, err error) {
	err = p.db.QueryRow(ctx, `select coalesce(max(format('; %s of %s updates HOT, table %s, indexes %s', n_tup_hot_upd, n_tup_upd,
			pg_size_pretty(pg_table_size(relid)), pg_size_pretty(pg_indexes_size(relid)))), '')
		from pg_stat_user_tables where schemaname = 'outbox' and relname = 'events'`).Scan(&stats)
	return stats, err
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
