package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// began is the zero of all times in this program, which come from one clock.
var began = time.Now()

func now() time.Duration { return time.Since(began) }

// consumer takes the messages of a place's queue, each as good as acknowledged, and notes when each number came. One
// goroutine of its own; start returns when it consumes, stop waits for it.
type consumer struct {
	at         []time.Duration // by number: when it came first; zero: not yet
	want       int64
	first      atomic.Int64 // when the first of all came
	unique     atomic.Int64
	duplicates atomic.Int64
	all        chan struct{} // closed when want numbers came
	broker     *amqp.Connection
	reading    sync.WaitGroup
	invented   atomic.Int64
}

// consume starts a consumer for numbers below capacity; its channel all is closed when want of them came.
func (p *place) consume(want, capacity int) (*consumer, error) {
	c := &consumer{at: make([]time.Duration, capacity), want: int64(want), all: make(chan struct{})}
	var err error
	if c.broker, err = amqp.Dial(p.amqpURL); err != nil {
		return nil, err
	}
	ch, err := c.broker.Channel()
	if err != nil {
		return nil, errors.Join(err, c.broker.Close())
	}
	deliveries, err := ch.Consume(p.name, "", true, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("consuming: %w", err), c.broker.Close())
	}
	c.reading.Go(func() {
		for d := range deliveries {
			c.take(d.Body)
		}
	})
	return c, nil
}

func (c *consumer) take(body []byte) {
	t := now()
	n, ok := numberOf(body)
	switch {
	case !ok || n >= len(c.at):
		c.invented.Add(1)
	case c.at[n] != 0:
		c.duplicates.Add(1)
	default:
		c.at[n] = t
		c.first.CompareAndSwap(0, int64(t))
		if c.unique.Add(1) == c.want {
			close(c.all)
		}
	}
}

// await waits until everything came. No message for a minute is an error, and so is one that nobody sent.
func (c *consumer) await(ctx context.Context) error {
	const patience = time.Minute
	for seen := int64(-1); ; {
		select {
		case <-c.all:
			if n := c.invented.Load(); n > 0 {
				return fmt.Errorf("%d messages that nobody sent", n)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(patience):
			if n := c.unique.Load(); n == seen {
				return fmt.Errorf("only %d of %d events came, and no other for %s", n, c.want, patience)
			}
			seen = c.unique.Load()
		}
	}
}

// stop ends the consumer; after it, at may be read.
func (c *consumer) stop() {
	_ = c.broker.Close()
	c.reading.Wait()
}

// payload is a JSON object of the given size that carries the number n.
func payload(n, size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size), `{"n":%d,"pad":"`, n)
	for len(b) < size-2 {
		b = append(b, 'x')
	}
	return append(b, '"', '}')
}

// payloadSQL is the same in SQL, of the column i.
const payloadSQL = `(rpad('{"n":' || i || ',"pad":"', $3 - 2, 'x') || '"}')`

// numberOf finds the number in a payload, wherever it stands.
func numberOf(body []byte) (n int, ok bool) {
	_, rest, found := bytes.Cut(body, []byte(`"n":`))
	if !found {
		return 0, false
	}
	for i, c := range rest {
		if c < '0' || c > '9' {
			return n, i > 0
		}
		n = n*10 + int(c-'0')
	}
	return n, false
}
