package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// failed is fresh traffic beside a million events that wait for their back-off.
func failed(ctx context.Context, b *bench) error {
	n, waiting := b.size(50_000), b.size(1_000_000)
	w := pace{writers: 4, rate: 200, length: b.duration(15 * time.Second)}
	measure := func(ctx context.Context, waiting int) (lags []float64, d drained, err error) {
		err = b.at(ctx, classic, func(p *place) error {
			if err := (outbox{}).prepare(ctx, p); err != nil {
				return err
			}
			if err := p.fillFailed(ctx, waiting); err != nil {
				return err
			}
			f, err := p.begin(ctx, outbox{}, w.events())
			if err != nil {
				return err
			}
			lags, err = f.latency(ctx, w)
			if err = errors.Join(err, f.end()); err != nil {
				return err
			}
			if err := (outbox{}).fill(ctx, p, 0, n); err != nil {
				return err
			}
			d, err = p.drain(ctx, outbox{}, n, n)
			b.log("drain of %d beside %d FAILED: %s", n, waiting, d)
			return err
		})
		return lags, d, err
	}
	return b.eachRound(ctx, func(ctx context.Context) error {
		without, base, err := measure(ctx, 0)
		if err != nil {
			return err
		}
		lags, d, err := measure(ctx, waiting)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%d FAILED waiting, ", waiting)
		b.report.add(name+"latency at 200/s, p50, against none", "ms", percentile(lags, 50), percentile(without, 50), atMost(1.1))
		b.report.add(name+"latency at 200/s, p99, against none", "ms", percentile(lags, 99), percentile(without, 99), noGoal)
		b.report.add(name+"drain, against none", "/s", d.rate, base.rate, atLeast(0.9))
		return nil
	})
}

// fillFailed leaves n events that are to be tried again tomorrow.
func (p *place) fillFailed(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	if err := inChunks(0, n, func(from, to int) error {
		_, err := p.db.Exec(ctx, `insert into outbox.events
			(aggregate_type, aggregate_id, event_type, payload, status, attempts, last_error, available_at)
			select 'order', 'order-' || i % 1000, 'order.created', `+payloadSQL+`::json, 'FAILED', 1, 'RabbitMQ did not take it',
			now() + interval '1 day' + i * interval '1 ms'
			from generate_series($1::int, $2::int) i`, from, to, payloadSize)
		return err
	}); err != nil {
		return err
	}
	return p.settle(ctx)
}
