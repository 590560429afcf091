package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// notifyLoop is the everyday design: a trigger that always notifies, and a loop that takes a hundred rows, publishes them
// one by one, each confirmed, and marks them in the same transaction.
type notifyLoop struct{}

func (notifyLoop) name() string { return "NOTIFY loop, one by one" }

func (notifyLoop) prepare(ctx context.Context, p *place) error {
	_, err := p.db.Exec(ctx, `create table events (
			id bigint generated always as identity primary key, event_type text not null, payload json not null,
			created_at timestamptz not null default now(), published_at timestamptz);
		create index on events (id) where published_at is null;
		create function notify() returns trigger language plpgsql as $$ begin perform pg_notify('events', ''); return null; end $$;
		create trigger notify after insert on events for each statement execute function notify()`)
	return err
}

const insertNotifyLoop = "insert into events (event_type, payload) values ('order.created', $1)"

func (notifyLoop) insert(ctx context.Context, tx pgx.Tx, payload []byte) error {
	_, err := tx.Exec(ctx, insertNotifyLoop, payload)
	return err
}

func (notifyLoop) fill(ctx context.Context, p *place, from, n int) error {
	return inChunks(from, n, func(from, to int) error {
		_, err := p.db.Exec(ctx, "insert into events (event_type, payload) select 'order.created', "+payloadSQL+`::json
			from generate_series($1::int, $2::int) i`, from, to, payloadSize)
		return err
	})
}

func (notifyLoop) start(ctx context.Context, p *place) (running, error) {
	listener, err := pgx.Connect(ctx, p.databaseURL)
	if err != nil {
		return nil, err
	}
	if _, err := listener.Exec(ctx, "listen events"); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, p.databaseURL)
	if err != nil {
		return nil, err
	}
	ch, err := p.confirmChannel()
	if err != nil {
		return nil, err
	}
	return inBackground(ctx, func(ctx context.Context) error {
		defer func() {
			_ = listener.Close(context.WithoutCancel(ctx))
			_ = conn.Close(context.WithoutCancel(ctx))
			_ = ch.Close()
		}()
		for ctx.Err() == nil {
			n, err := publishSome(ctx, conn, ch, p.name)
			if err != nil {
				return err
			}
			if n == 0 {
				waiting, cancel := context.WithTimeout(ctx, time.Second)
				_, _ = listener.WaitForNotification(waiting) // or the time is up: look again
				cancel()
			}
		}
		return nil
	}), nil
}

func publishSome(ctx context.Context, conn *pgx.Conn, ch *amqp.Channel, exchange string) (int, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	rows, err := tx.Query(ctx, `select id, event_type, payload::text from events where published_at is null
		order by id limit 100 for update skip locked`)
	if err != nil {
		return 0, err
	}
	type event struct {
		ID            int64
		Type, Payload string
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	if err != nil || len(events) == 0 {
		return 0, err
	}
	ids := make([]int64, len(events))
	for i, e := range events {
		ids[i] = e.ID
		confirm, err := ch.PublishWithDeferredConfirm(exchange, e.Type, true, false, message(int(e.ID), []byte(e.Payload)))
		if err != nil {
			return 0, err
		}
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			return 0, fmt.Errorf("a message was not confirmed: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, "update events set published_at = now() where id = any($1)", ids); err != nil {
		return 0, err
	}
	return len(events), tx.Commit(ctx)
}
