package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// backlog is the rate at which the first 100,000 events of a deep backlog go out, against a shallow one, and the time from
// the start of the process to the first of them.
func backlog(ctx context.Context, b *bench) error {
	shallow, sizes := b.size(20_000), []int{b.size(1_000_000)}
	if b.large {
		sizes = append(sizes, b.size(5_000_000))
	}
	return b.eachRound(ctx, func(ctx context.Context) error {
		base, err := b.drainOf(ctx, outbox{}, classic, shallow)
		if err != nil {
			return err
		}
		for _, size := range sizes {
			err := b.at(ctx, classic, func(p *place) error {
				d, err := p.drainFilled(ctx, outbox{}, size, min(size, 100_000))
				if err != nil {
					return err
				}
				name := fmt.Sprintf("backlog of %d, ", size)
				b.report.add(fmt.Sprintf("%sdrain, against %d", name, shallow), "/s", d.rate, base.rate, atLeast(0.9))
				b.report.add(name+"start of the process to first event", "ms", d.first.Seconds()*1000, 0, atMost(100))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// drainFilled drains the first n of a backlog of outbox-relay's.
func (p *place) drainFilled(ctx context.Context, c contender, backlog, n int) (d drained, err error) {
	if err := c.prepare(ctx, p); err != nil {
		return d, err
	}
	if err := c.fill(ctx, p, 0, backlog); err != nil {
		return d, err
	}
	d, err = p.drain(ctx, c, backlog, n)
	p.bench.log("drain, %d of %d, %s: %s", n, backlog, c.name(), d)
	return d, err
}

// snapshot is a drain while a REPEATABLE READ transaction keeps every dead row from being cleaned away.
func snapshot(ctx context.Context, b *bench) error {
	n := b.size(500_000)
	return b.eachRound(ctx, func(ctx context.Context) error {
		without, err := b.drainOf(ctx, outbox{}, classic, n)
		if err != nil {
			return err
		}
		return b.at(ctx, classic, func(p *place) error {
			end, err := p.hold(ctx, pgx.RepeatableRead, "select 1")
			if err != nil {
				return err
			}
			d, err := p.drainFilled(ctx, outbox{}, n, n)
			if err = errors.Join(err, end()); err != nil {
				return err
			}
			b.report.add("REPEATABLE READ open, drain, last fifth against first", "/s", d.lastFifth(), d.firstFifth(), atLeast(0.9))
			b.report.add("the same without the transaction", "/s", without.lastFifth(), without.firstFifth(), noGoal)
			b.report.add("REPEATABLE READ open, drain, against without", "/s", d.rate, without.rate, atLeast(0.8))
			return nil
		})
	})
}

// hold opens a transaction that stays open after the statement, until end commits it.
func (p *place) hold(ctx context.Context, level pgx.TxIsoLevel, statement string, args ...any) (end func() error, err error) {
	conn, err := pgx.Connect(ctx, p.databaseURL)
	if err != nil {
		return nil, err
	}
	closeConn := func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err == nil {
		_, err = tx.Exec(ctx, statement, args...)
	}
	if err != nil {
		closeConn()
		return nil, err
	}
	return func() error {
		defer closeConn()
		return tx.Commit(ctx)
	}, nil
}

// writing is the latency while a transaction that has inserted an event stays open and keeps the frontier where it is.
func writing(ctx context.Context, b *bench) error {
	w := pace{writers: 4, rate: 1000, length: b.duration(b.hold)}
	return b.eachRound(ctx, func(ctx context.Context) error {
		without, err := b.latencyOf(ctx, outbox{}, w)
		if err != nil {
			return err
		}
		return b.at(ctx, classic, func(p *place) error {
			if err := (outbox{}).prepare(ctx, p); err != nil {
				return err
			}
			n := w.events()
			f, err := p.begin(ctx, outbox{}, n+1)
			if err != nil {
				return err
			}
			defer func() { _ = f.end() }()
			end, err := p.hold(ctx, pgx.ReadCommitted, insertEvent, payload(n))
			if err != nil {
				return err
			}
			lags, err := f.latency(ctx, w)
			if err != nil {
				return err
			}
			committing := now()
			if err := errors.Join(end(), f.await(ctx, 1)); err != nil {
				return err
			}
			name := fmt.Sprintf("writing transaction open for %s at 1000/s, ", w.length.Round(time.Second))
			b.report.add(name+"p50, against without", "ms", percentile(lags, 50), percentile(without, 50), noGoal)
			b.report.add(name+"p99, against without", "ms", percentile(lags, 99), percentile(without, 99), atMost(3))
			last := lags[len(lags)*4/5:]
			b.report.add(name+"p99 of the last fifth, against without", "ms", percentile(last, 99), percentile(without, 99), noGoal)
			b.report.add(name+"its own event after its commit", "ms", (f.consumer.at[n]-committing).Seconds()*1000, 0, atMost(1000))
			return nil
		})
	})
}
