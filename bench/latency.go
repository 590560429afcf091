package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// latency is the time from just before COMMIT is sent until the consumer has the message, against the floor: a raw NOTIFY
// from COMMIT to its receipt plus a raw publish to its consumption, at the same rate.
func latency(ctx context.Context, b *bench) error {
	for _, step := range []struct {
		rate     int
		p50, p99 goal
	}{{200, atMost(1.4), atMost(4)}, {2000, atMost(3), noGoal}} {
		w := pace{writers: 4, rate: step.rate, length: b.duration(15 * time.Second)}
		err := b.eachRound(ctx, func(ctx context.Context) error {
			before, err := b.latencyFloor(ctx, w)
			if err != nil {
				return fmt.Errorf("the floor: %w", err)
			}
			lags, err := b.latencyOf(ctx, outbox{}, w)
			if err != nil {
				return err
			}
			after, err := b.latencyFloor(ctx, w)
			if err != nil {
				return fmt.Errorf("the floor: %w", err)
			}
			floor := (before + after) / 2
			name := fmt.Sprintf("latency at %d/s, ", step.rate)
			b.report.add(name+"p50", "ms", percentile(lags, 50), floor, step.p50)
			b.report.add(name+"p99", "ms", percentile(lags, 99), floor, step.p99)
			b.report.add(name+"max", "ms", percentile(lags, 100), floor, noGoal)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// latencyOf measures a contender in a place of its own and returns the lag of each event, in milliseconds.
func (b *bench) latencyOf(ctx context.Context, c contender, w pace) (lags []float64, err error) {
	err = b.at(ctx, classic, func(p *place) error {
		if err := c.prepare(ctx, p); err != nil {
			return err
		}
		f, err := p.begin(ctx, c, w.events())
		if err != nil {
			return err
		}
		lags, err = f.latency(ctx, w)
		return errors.Join(err, f.end())
	})
	return lags, err
}

// latency writes the events 0, 1, … at the pace, waits for them and returns the lag of each, in milliseconds.
func (f *flow) latency(ctx context.Context, w pace) ([]float64, error) {
	committing, err := f.place.write(ctx, w, f.contender.insert)
	if err != nil {
		return nil, fmt.Errorf("writing: %w", err)
	}
	if err := f.await(ctx, len(committing)); err != nil {
		return nil, err
	}
	lags := between(committing, f.consumer.at)
	f.place.bench.log("latency at %d/s, %s: %s", w.rate, f.contender.name(), spread(lags))
	return lags, nil
}

func between(from, to []time.Duration) []float64 {
	lags := make([]float64, len(from))
	for i := range from {
		lags[i] = float64(to[i]-from[i]) / float64(time.Millisecond)
	}
	return lags
}

// spread describes lags in a line of the log.
func spread(lags []float64) string {
	return fmt.Sprintf("p50 %.2f, p90 %.2f, p99 %.2f, max %.2f ms", percentile(lags, 50), percentile(lags, 90),
		percentile(lags, 99), percentile(lags, 100))
}
