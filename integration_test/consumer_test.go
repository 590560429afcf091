package integration_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// consumer receives whatever the relay publishes, and keeps when. One goroutine reads; it ends with the test.
type consumer struct {
	channel *amqp.Channel
	queue   string

	mu         sync.Mutex
	deliveries map[uuid.UUID][]delivery
	total      int
	failed     error // a message that is none of the relay's
}

type delivery struct {
	at      time.Time
	number  int
	attempt int64
}

// consume binds a queue to the outbox's exchange for these routing keys, by default for all.
func (o *outbox) consume(keys ...string) *consumer {
	o.tb.Helper()
	conn, err := amqp.Dial(o.amqpURL)
	if err != nil {
		o.tb.Fatal(err)
	}
	c := &consumer{deliveries: map[uuid.UUID][]delivery{}}
	var reader sync.WaitGroup
	o.tb.Cleanup(func() {
		_ = conn.Close()
		reader.Wait()
		if c.failed != nil {
			o.tb.Error(c.failed)
		}
	})
	messages, err := c.subscribe(conn, o.exchange, keys)
	if err != nil {
		o.tb.Fatal(err)
	}
	reader.Go(func() {
		for m := range messages {
			c.record(&m)
		}
	})
	return c
}

func (c *consumer) subscribe(conn *amqp.Connection, exchange string, keys []string) (<-chan amqp.Delivery, error) {
	var err error
	if c.channel, err = conn.Channel(); err != nil {
		return nil, err
	}
	if err := c.channel.ExchangeDeclare(exchange, "topic", true, false, false, false, nil); err != nil {
		return nil, err
	}
	q, err := c.channel.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		return nil, err
	}
	c.queue = q.Name
	if len(keys) == 0 {
		keys = []string{"#"}
	}
	for _, key := range keys {
		if err := c.channel.QueueBind(c.queue, key, exchange, false, nil); err != nil {
			return nil, err
		}
	}
	return c.channel.Consume(c.queue, "", true, true, false, false, nil)
}

func (c *consumer) record(m *amqp.Delivery) {
	now := time.Now()
	var body struct{ Number int }
	id, err := uuid.Parse(m.MessageId)
	if err == nil {
		err = json.Unmarshal(m.Body, &body)
	}
	attempt, ok := m.Headers["x-outbox-attempt"].(int64)
	if !ok {
		attempt32, _ := m.Headers["x-outbox-attempt"].(int32)
		attempt = int64(attempt32)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed = fmt.Errorf("consumed a message with the id %q and the body %q: %w", m.MessageId, m.Body, err)
		return
	}
	c.deliveries[id] = append(c.deliveries[id], delivery{at: now, number: body.Number, attempt: attempt})
	c.total++
}

// events is how many different ones were consumed.
func (c *consumer) events() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.deliveries)
}
