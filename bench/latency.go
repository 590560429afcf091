package main

import (
	"context"
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

// latencyOf measures one contender and returns the lag of each event, in milliseconds.
func (b *bench) latencyOf(ctx context.Context, c contender, w pace) (lags []float64, err error) {
	err = b.at(ctx, classic, func(p *place) error {
		if err := c.prepare(ctx, p); err != nil {
			return err
		}
		lags, err = p.latency(ctx, c, w)
		return err
	})
	b.log("latency at %d/s, %s: p50 %.2f, p99 %.2f, max %.2f ms", w.rate, c.name(),
		percentile(lags, 50), percentile(lags, 99), percentile(lags, 100))
	return lags, err
}

// latency measures a contender whose tables stand.
func (p *place) latency(ctx context.Context, c contender, w pace) (lags []float64, err error) {
	consumer, err := p.consume(w.events()+1, w.events()+1)
	if err != nil {
		return nil, err
	}
	defer consumer.stop()
	stop, err := c.start(ctx, p)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopErr := stop(); err == nil {
			err = stopErr
		}
	}()
	if err := p.warmUp(ctx, c, w.events(), consumer); err != nil {
		return nil, err
	}
	committing, err := p.write(ctx, w, c.insert)
	if err != nil {
		return nil, fmt.Errorf("writing: %w", err)
	}
	if err := consumer.await(ctx); err != nil {
		return nil, err
	}
	consumer.stop()
	return between(committing, consumer.at), nil
}

// warmUp sends one event, the last number, and waits for it: then everything is connected. A second of rest lets the
// contender find out that nothing more is there.
func (p *place) warmUp(ctx context.Context, c contender, n int, consumer *consumer) error {
	if err := c.fill(ctx, p, n, 1, payloadSize); err != nil {
		return err
	}
	for deadline := now() + time.Minute; consumer.first.Load() == 0; {
		if now() > deadline || ctx.Err() != nil {
			return fmt.Errorf("%s does not send a first event", c.name())
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second)
	return nil
}

func between(from, to []time.Duration) []float64 {
	lags := make([]float64, len(from))
	for i := range from {
		lags[i] = float64(to[i]-from[i]) / float64(time.Millisecond)
	}
	return lags
}
