package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverJobs is a River job for each event, whose worker publishes it and waits for the confirm. A thousand workers and a
// fetch every millisecond, where the defaults would be slower.
type riverJobs struct{}

func (riverJobs) name() string { return "River, a job an event" }

var quiet = slog.New(slog.DiscardHandler)

func (riverJobs) prepare(ctx context.Context, p *place) error {
	pool, err := pgxpool.New(ctx, p.databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// publishArgs is a job's row.
type publishArgs struct {
	Event json.RawMessage `json:"event"`
}

func (publishArgs) Kind() string { return "publish" }

// inserter is a client that only inserts, in transactions of the caller's.
func (riverJobs) inserter() (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(nil), &river.Config{Logger: quiet})
}

func (r riverJobs) insert(ctx context.Context, tx pgx.Tx, payload []byte) error {
	client, err := r.inserter()
	if err != nil {
		return err
	}
	_, err = client.InsertTx(ctx, tx, publishArgs{payload}, nil)
	return err
}

func (r riverJobs) fill(ctx context.Context, p *place, from, n int) error {
	client, err := r.inserter()
	if err != nil {
		return err
	}
	return inChunks(from, n, func(from, to int) error {
		var jobs []river.InsertManyParams
		for _, payload := range payloads(from, to) {
			jobs = append(jobs, river.InsertManyParams{Args: publishArgs{payload}})
		}
		return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
			_, err := client.InsertManyFastTx(ctx, tx, jobs)
			return err
		})
	})
}

type publishWorker struct {
	river.WorkerDefaults[publishArgs]
	ch       *amqp.Channel
	exchange string
}

func (w *publishWorker) Work(ctx context.Context, job *river.Job[publishArgs]) error {
	confirm, err := w.ch.PublishWithDeferredConfirm(w.exchange, "order.created", true, false, message(int(job.ID), job.Args.Event))
	if err != nil {
		return err
	}
	if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
		return fmt.Errorf("a message was not confirmed: %w", err)
	}
	return nil
}

// riverRunning is a client at work.
type riverRunning struct {
	client *river.Client[pgx.Tx]
	pool   *pgxpool.Pool
	ch     *amqp.Channel
}

func (riverJobs) start(ctx context.Context, p *place) (running, error) {
	pool, err := pgxpool.New(ctx, p.databaseURL)
	if err != nil {
		return nil, err
	}
	ch, err := p.confirmChannel()
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &publishWorker{ch: ch, exchange: p.name})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}},
		FetchCooldown: time.Millisecond,
		Workers:       workers,
		Logger:        quiet,
	})
	if err != nil {
		return nil, err
	}
	return &riverRunning{client, pool, ch}, client.Start(context.WithoutCancel(ctx))
}

func (r *riverRunning) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	defer r.pool.Close()
	defer func() { _ = r.ch.Close() }()
	return r.client.Stop(ctx)
}
