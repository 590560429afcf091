package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	prefetch = 500
	// lastType marks the message that the consumer sends to itself to know that it has all before it.
	lastType = "demo.last"
)

// consumer notes in the ledger what arrives. It has one goroutine, which close waits for.
type consumer struct {
	place place
	conn  *amqp.Connection
	ch    *amqp.Channel
	last  chan struct{} // a message of lastType has arrived
	done  chan struct{}
}

// startConsumer binds a queue of its own to the relay's exchange. It is exclusive, so that it goes with the connection.
// lost is called when the broker ends that.
func startConsumer(p place, l *ledger, lost func(error)) (_ *consumer, err error) {
	conn, err := amqp.DialConfig(p.amqpURL, amqp.Config{
		Dial:       amqp.DefaultDial(10 * time.Second),
		Heartbeat:  10 * time.Second,
		Properties: amqp.Table{"connection_name": "outbox-relay demo, consumer"},
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to RabbitMQ (AMQP_URL): %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("preparing the consumer: %w", err), conn.Close())
		}
	}()
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.ExchangeDeclare(p.exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return nil, err
	}
	if _, err := ch.QueueDeclare(p.queue, true, false, true, false, nil); err != nil {
		return nil, err
	}
	if err := ch.QueueBind(p.queue, "order.#", p.exchange, false, nil); err != nil {
		return nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := ch.Consume(p.queue, "", false, true, false, false, nil)
	if err != nil {
		return nil, err
	}
	c := &consumer{place: p, conn: conn, ch: ch, last: make(chan struct{}, 1), done: make(chan struct{})}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		defer close(c.done)
		c.receive(deliveries, l)
		if cause := <-closed; cause != nil {
			lost(fmt.Errorf("the consumer has lost RabbitMQ: %w", cause))
		}
	}()
	return c, nil
}

func (c *consumer) receive(deliveries <-chan amqp.Delivery, l *ledger) {
	for m := range deliveries {
		if m.Type == lastType {
			c.last <- struct{}{}
		} else {
			l.received(time.Now(), m.MessageId, m.Type, m.CorrelationId)
		}
		_ = m.Ack(false) // fails only when the connection is lost, which ends the loop
	}
}

// drain returns when everything that is in the queue now has been received.
func (c *consumer) drain(ctx context.Context) error {
	err := c.ch.PublishWithContext(ctx, "", c.place.queue, true, false, amqp.Publishing{Type: lastType})
	if err != nil {
		return fmt.Errorf("asking for the end of the queue: %w", err)
	}
	select {
	case <-c.last:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(catchUpTimeout):
		return fmt.Errorf("the queue's end has not arrived after %s", catchUpTimeout)
	}
}

// close removes the exchange, unless the whole broker goes, and with the connection the queue.
func (c *consumer) close() error {
	var failed error
	if c.place.sharedBroker && !c.conn.IsClosed() {
		if err := c.ch.ExchangeDelete(c.place.exchange, false, false); err != nil {
			failed = fmt.Errorf("removing exchange %s: %w", c.place.exchange, err)
		}
	}
	_ = c.conn.CloseDeadline(time.Now().Add(time.Second)) // that it is closed already is no news
	<-c.done
	return failed
}
