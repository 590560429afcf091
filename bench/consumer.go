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
	unique     atomic.Int64
	duplicates atomic.Int64
	broker     *amqp.Connection
	reading    sync.WaitGroup
	invented   atomic.Int64
}

// consume starts a consumer for numbers below capacity.
func (p *place) consume(capacity int) (*consumer, error) {
	c := &consumer{at: make([]time.Duration, capacity)}
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
		c.unique.Add(1)
	}
}

// await waits until so many different events came. No message for a minute is an error, and so is one that nobody sent.
func (c *consumer) await(ctx context.Context, want int) error {
	const patience = time.Minute
	seen, since := c.unique.Load(), now()
	for seen < int64(want) {
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
		if n := c.unique.Load(); n > seen {
			seen, since = n, now()
		}
		if now()-since > patience {
			return fmt.Errorf("only %d of %d events came, and no other for %s", seen, want, patience)
		}
	}
	if n := c.invented.Load(); n > 0 {
		return fmt.Errorf("%d messages that nobody sent", n)
	}
	return nil
}

// stop ends the consumer; after it, at may be read.
func (c *consumer) stop() {
	_ = c.broker.Close()
	c.reading.Wait()
}

const payloadSize = 512 // bytes

// payload is a JSON object that carries the number n.
func payload(n int) []byte {
	b := fmt.Appendf(make([]byte, 0, payloadSize), `{"n":%d,"pad":"`, n)
	for len(b) < payloadSize-2 {
		b = append(b, 'x')
	}
	return append(b, '"', '}')
}

// payloads are those of the numbers from first to last.
func payloads(first, last int) [][]byte {
	var all [][]byte
	for n := first; n <= last; n++ {
		all = append(all, payload(n))
	}
	return all
}

// payloadSQL is the same in SQL, of the column i.
const payloadSQL = `(rpad('{"n":' || i || ',"pad":"', $3 - 2, 'x') || '"}')`

// numberOf finds the number in a payload, wherever it stands; jsonb puts a blank before it.
func numberOf(body []byte) (n int, ok bool) {
	_, rest, found := bytes.Cut(body, []byte(`"n":`))
	if !found {
		return 0, false
	}
	for i, c := range bytes.TrimLeft(rest, " ") {
		if c < '0' || c > '9' {
			return n, i > 0
		}
		n = n*10 + int(c-'0')
	}
	return n, false
}
