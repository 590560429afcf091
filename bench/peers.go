package main

import (
	"context"
	"time"
)

// peers are other ways to do the same, with confirms, against outbox-relay in the same round. They run inside this program,
// which spares them a process of their own.
func peers(ctx context.Context, b *bench) error {
	w := pace{writers: 4, rate: 200, length: b.duration(15 * time.Second)}
	n := b.size(20_000)
	return b.eachRound(ctx, func(ctx context.Context) error {
		relayLags, err := b.latencyOf(ctx, outbox{}, w)
		if err != nil {
			return err
		}
		relayDrain, err := b.drainOf(ctx, outbox{}, classic, n)
		if err != nil {
			return err
		}
		for _, c := range []contender{notifyLoop{}, watermillForwarder{}, riverJobs{}} {
			lags, err := b.latencyOf(ctx, c, w)
			if err != nil {
				return err
			}
			d, err := b.drainOf(ctx, c, classic, n)
			if err != nil {
				return err
			}
			b.report.add(c.name()+", latency at 200/s, p50, against outbox-relay", "ms", percentile(lags, 50),
				percentile(relayLags, 50), atLeast(1))
			b.report.add(c.name()+", latency at 200/s, p99, against outbox-relay", "ms", percentile(lags, 99),
				percentile(relayLags, 99), noGoal)
			b.report.add(c.name()+", drain, against outbox-relay", "/s", d.rate, relayDrain.rate, noGoal)
		}
		return nil
	})
}
