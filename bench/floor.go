package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
)

// latencyFloor is the median of a raw NOTIFY plus that of a raw publish, in milliseconds, for a third of the pace's time.
func (b *bench) latencyFloor(ctx context.Context, w pace) (floor float64, err error) {
	w.length /= 3
	err = b.at(ctx, classic, func(p *place) error {
		notify, err := p.rawNotify(ctx, w)
		if err != nil {
			return err
		}
		publish, err := p.rawPublish(ctx, w)
		floor = percentile(notify, 50) + percentile(publish, 50)
		b.log("floor at %d/s: NOTIFY %s, publish %s", w.rate, spread(notify), spread(publish))
		return err
	})
	return floor, err
}

// rawNotify measures from COMMIT of a transaction that inserts a row and notifies until a listener hears.
func (p *place) rawNotify(ctx context.Context, w pace) ([]float64, error) {
	if _, err := p.db.Exec(ctx, "create table plain (id bigint generated always as identity primary key, payload json)"); err != nil {
		return nil, err
	}
	listener, err := pgx.Connect(ctx, p.databaseURL)
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close(context.WithoutCancel(ctx)) }()
	if _, err := listener.Exec(ctx, "listen floor"); err != nil {
		return nil, err
	}
	heard := make([]time.Duration, w.events())
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error {
		for range heard {
			n, err := listener.WaitForNotification(listening)
			if err != nil {
				return err
			}
			number, _ := numberOf([]byte(n.Payload))
			heard[number] = now()
		}
		return nil
	})
	committing, err := p.write(ctx, w, func(ctx context.Context, tx pgx.Tx, payload []byte) error {
		n, _ := numberOf(payload)
		_, err := tx.Exec(ctx, "with event as (insert into plain (payload) values ($1)) select pg_notify('floor', $2)",
			payload, fmt.Sprintf(`"n":%d;`, n))
		return err
	})
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, g.Wait()); err != nil {
		return nil, err
	}
	return between(committing, heard), nil
}

// rawPublish measures from publishing until the consumer has it, on a channel with confirms.
func (p *place) rawPublish(ctx context.Context, w pace) ([]float64, error) {
	consumer, err := p.consume(w.events())
	if err != nil {
		return nil, err
	}
	defer consumer.stop()
	ch, err := p.confirmChannel()
	if err != nil {
		return nil, err
	}
	sending := make([]time.Duration, w.events())
	period := time.Second / time.Duration(w.rate)
	start := now()
	for n := range sending {
		time.Sleep(start + period*time.Duration(n) - now())
		body := payload(n)
		sending[n] = now()
		if _, err := ch.PublishWithDeferredConfirm(p.name, "order.created", true, false, message(n, body)); err != nil {
			return nil, err
		}
	}
	if err := consumer.await(ctx, w.events()); err != nil {
		return nil, err
	}
	consumer.stop()
	return between(sending, consumer.at), nil
}

func (p *place) confirmChannel() (*amqp.Channel, error) {
	ch, err := p.broker.Channel()
	if err != nil {
		return nil, err
	}
	return ch, ch.Confirm(false)
}

// message has the properties that outbox-relay sends.
func message(n int, body []byte) amqp.Publishing {
	return amqp.Publishing{
		Headers: amqp.Table{
			"x-outbox-aggregate-type": "order", "x-outbox-aggregate-id": "order-42",
			"x-outbox-sequence": int64(n), "x-outbox-attempt": int64(1),
		},
		ContentType: "application/json", DeliveryMode: amqp.Persistent, CorrelationId: "order-42",
		MessageId: fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n), Timestamp: time.Now(), Type: "order.created",
		AppId: "outbox-relay", Body: body,
	}
}

// rawDrain publishes n messages with at most window of them without a confirm, to a consumer, and returns the rate from the
// first to the last that came, in messages a second.
func (p *place) rawDrain(ctx context.Context, n int) (float64, error) {
	const window = 2000
	consumer, err := p.consume(n)
	if err != nil {
		return 0, err
	}
	defer consumer.stop()
	ch, err := p.confirmChannel()
	if err != nil {
		return 0, err
	}
	sent := make(chan *amqp.DeferredConfirmation, window)
	g, publishing := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(sent)
		for i := range n {
			confirm, err := ch.PublishWithDeferredConfirm(p.name, "order.created", true, false, message(i, payload(i)))
			if err != nil {
				return err
			}
			select {
			case sent <- confirm:
			case <-publishing.Done():
				return publishing.Err()
			}
		}
		return nil
	})
	g.Go(func() error {
		for confirm := range sent {
			if acked, err := confirm.WaitContext(publishing); err != nil || !acked {
				return fmt.Errorf("a message was not confirmed: %w", err)
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return 0, err
	}
	if err := consumer.await(ctx, n); err != nil {
		return 0, err
	}
	consumer.stop()
	return rate(consumer.arrivals()), nil
}
