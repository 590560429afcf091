package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// churn is a day's events in some minutes: written, published and pruned all the time. The rate must not fall, and the
// table must stop growing.
func churn(ctx context.Context, b *bench) error {
	n, size := b.size(500_000), noGoal // too few for a round of pruning, a minute at least, and what autovacuum makes of it
	if b.large {
		n, size = b.size(5_000_000), atMost(1.1)
	}
	return b.eachRound(ctx, func(ctx context.Context) error {
		return b.at(ctx, classic, func(p *place) error {
			c := outbox{flags: []string{"--retention=5s"}}
			if err := c.prepare(ctx, p); err != nil {
				return err
			}
			f, err := p.begin(ctx, c, n)
			if err != nil {
				return err
			}
			sizes, err := f.churn(ctx, n)
			if err = errors.Join(err, f.end()); err != nil {
				return err
			}
			d := drained{arrivals: f.consumer.arrivals()[1:]}
			name := fmt.Sprintf("churn of %d with pruning, ", n)
			b.report.add(name+"last fifth against first", "/s", d.lastFifth(), d.firstFifth(), atLeast(0.9))
			b.report.add(name+"table and indexes at the end, against three fifths", "MiB", sizes[4], sizes[2], size)
			return nil
		})
	})
}

// churn writes n events as fast as they are delivered and returns the size of table and indexes after each fifth, in MiB.
func (f *flow) churn(ctx context.Context, n int) (sizes [5]float64, err error) {
	const writers, perTransaction, ahead = 4, 20, 10_000
	var numbers atomic.Int64
	g, writing := errgroup.WithContext(ctx)
	for range writers {
		g.Go(func() error {
			conn, err := pgx.Connect(writing, f.place.databaseURL)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			for {
				first := int(numbers.Add(perTransaction)) - perTransaction
				if first >= n {
					return nil
				}
				for int64(first)-f.consumer.unique.Load() > ahead {
					if err := sleep(writing, time.Millisecond); err != nil {
						return err
					}
				}
				if err := insertTogether(writing, conn, payloads(first, min(first+perTransaction, n)-1)); err != nil {
					return err
				}
			}
		})
	}
	g.Go(func() error {
		for i := range sizes {
			if err := f.await(writing, n*(i+1)/5-n*i/5); err != nil {
				return err
			}
			const size = "select pg_total_relation_size('outbox.events') / 1048576.0"
			if err := f.place.db.QueryRow(writing, size).Scan(&sizes[i]); err != nil {
				return err
			}
			f.place.bench.log("churn: %d of %d delivered, table and indexes %.0f MiB", n*(i+1)/5, n, sizes[i])
		}
		return nil
	})
	err = g.Wait()
	return sizes, err
}

// insertTogether commits the events in one transaction, each by a statement of its own.
func insertTogether(ctx context.Context, conn *pgx.Conn, payloads [][]byte) error {
	batch := &pgx.Batch{}
	for _, payload := range payloads {
		batch.Queue(insertEvent, payload)
	}
	return conn.SendBatch(ctx, batch).Close()
}
