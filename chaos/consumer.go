package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// consumer takes messages off the queue and applies the effect of each once, in the transaction that writes its id into the
// inbox; then it acknowledges. What fails it starts over, on new connections. One goroutine runs it.
type consumer struct {
	place  place
	ledger *ledger
	random *rand.Rand
}

// declare makes the exchange as the relay would, and binds the queue to it.
func (p place) declare() error {
	conn, err := amqp.Dial(p.amqpURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.ExchangeDeclare(exchange, "topic", true, false, false, false, nil); err != nil {
		return err
	}
	kind := amqp.Table{}
	if p.quorum {
		kind["x-queue-type"] = "quorum"
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, kind); err != nil {
		return err
	}
	return channel.QueueBind(queue, "chaos.*", exchange, false, nil)
}

// run consumes until ctx ends.
func (c *consumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = c.consume(ctx) // servers come and go
		pause(ctx, 100*time.Millisecond)
	}
}

func (c *consumer) consume(ctx context.Context) error {
	connecting, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	db, err := pgx.Connect(connecting, c.place.databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	conn, err := amqp.DialConfig(c.place.amqpURL, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second), Heartbeat: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(100, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case m, ok := <-deliveries:
			if !ok {
				return errors.New("connection lost")
			}
			if err := c.handle(ctx, db, &m); err != nil {
				return err
			}
		}
	}
}

var errDying = errors.New("the consumer dies between its commit and its acknowledgement")

func (c *consumer) handle(ctx context.Context, db *pgx.Conn, m *amqp.Delivery) error {
	d, err := read(m)
	if err == nil && !c.ledger.knows(d.number) {
		err = fmt.Errorf("number %d was never given out", d.number)
	}
	if err != nil {
		c.ledger.stranger(fmt.Sprintf("message %q, %q: %v", m.MessageId, m.Body[:min(len(m.Body), 100)], err))
		return m.Ack(false)
	}
	c.ledger.deliver(d)
	_, err = db.Exec(context.WithoutCancel(ctx), `with new as (
			insert into chaos.inbox (event_id) values ($1) on conflict do nothing returning event_id)
		insert into chaos.effects (number) select $2::bigint from new`, [16]byte(d.id), d.number)
	if err != nil {
		return err
	}
	if c.random.IntN(2000) == 0 {
		return errDying
	}
	return m.Ack(false)
}

// read takes a message apart; what is said twice in it must be the same.
func read(m *amqp.Delivery) (d delivery, err error) {
	d.redelivered = m.Redelivered
	if d.id, err = uuid.Parse(m.MessageId); err != nil {
		return d, err
	}
	if d.number, err = strconv.Atoi(m.CorrelationId); err != nil {
		return d, err
	}
	switch attempt := m.Headers["x-outbox-attempt"].(type) {
	case int32:
		d.attempt = int(attempt)
	case int64:
		d.attempt = int(attempt)
	default:
		return d, fmt.Errorf("its attempt is %v", attempt)
	}
	var body struct {
		Number int
		Filler string
	}
	if err := json.Unmarshal(m.Body, &body); err != nil {
		return d, err
	}
	if body.Number != d.number {
		return d, fmt.Errorf("its body is that of number %d, not %d", body.Number, d.number)
	}
	return d, nil
}
