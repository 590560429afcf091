package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// memory is the most that the relay has resident while it drains.
func memory(ctx context.Context, b *bench) error {
	return b.eachRound(ctx, func(ctx context.Context) error {
		small, err := b.drainOf(ctx, outbox{}, classic, b.size(200_000))
		if err != nil {
			return err
		}
		b.report.add("memory, peak at full drain of small events", "MiB", small.memory, 0, atMost(64))
		n := b.size(1000)
		return b.at(ctx, classic, func(p *place) error {
			if err := (outbox{}).prepare(ctx, p); err != nil {
				return err
			}
			if err := p.fillLarge(ctx, n, 1<<20); err != nil {
				return err
			}
			d, err := p.drain(ctx, outbox{}, n, n)
			b.log("drain of %d events of 1 MiB: %s, %.0f MiB resident", n, d, d.memory)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("%d events of 1 MiB, ", n)
			b.report.add(name+"memory, peak", "MiB", d.memory, 0, noGoal)
			b.report.add(name+"drain", "/s", d.rate, 0, noGoal)
			return nil
		})
	})
}

// fillLarge commits n events of a size, with payloads that can't be compressed.
func (p *place) fillLarge(ctx context.Context, n, size int) error {
	noise := make([]byte, size*3/4)
	if _, err := rand.Read(noise); err != nil {
		return err
	}
	text := base64.StdEncoding.EncodeToString(noise)
	_, err := p.db.CopyFrom(ctx, pgx.Identifier{"outbox", "events"},
		[]string{"aggregate_type", "aggregate_id", "event_type", "payload"},
		pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			body := fmt.Sprintf(`{"n":%d,"pad":"`, i)
			return []any{"order", "order-42", "order.created", body + text[:size-len(body)-2] + `"}`}, nil
		}))
	return err
}
