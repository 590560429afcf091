package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// probe tells a slow relay from a slow machine: it asks PostgreSQL for nothing and sends RabbitMQ a message to itself, again
// and again, and keeps when these round trips took longer than they ever do by themselves. One goroutine; ends with the test.
type probe struct {
	began time.Time

	mu      sync.Mutex
	held    []span
	failure error
}

type span struct{ from, to time.Time }

const (
	probePause = 5 * time.Millisecond
	probeUsual = 20 * time.Millisecond // what a round trip to both may take
)

func (o *outbox) probe() *probe {
	o.tb.Helper()
	database := o.connect()
	broker, err := amqp.Dial(o.amqpURL)
	if err != nil {
		o.tb.Fatal(err)
	}
	ch, err := broker.Channel()
	if err != nil {
		o.tb.Fatal(err)
	}
	q, err := ch.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		o.tb.Fatal(err)
	}
	echoes, err := ch.Consume(q.Name, "", true, true, false, false, nil)
	if err != nil {
		o.tb.Fatal(err)
	}
	p := &probe{began: time.Now()}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	o.tb.Cleanup(func() {
		cancel()
		_ = broker.Close()
		running.Wait()
		_ = database.Close(context.Background())
		if p.failure != nil {
			o.tb.Error("probing the servers:", p.failure)
		}
	})
	running.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			_, err := database.Exec(ctx, "select 1")
			if err == nil {
				err = ch.PublishWithContext(ctx, "", q.Name, false, false, amqp.Publishing{})
			}
			if err == nil {
				<-echoes
			} else if ctx.Err() == nil {
				p.failure = err
				return
			}
			p.record(began)
			time.Sleep(probePause)
		}
	})
	return p
}

func (p *probe) record(began time.Time) {
	now := time.Now()
	if now.Sub(began) > probeUsual {
		p.mu.Lock()
		p.held = append(p.held, span{began, now})
		p.mu.Unlock()
	}
}

// heldUp is for how long, between two moments, the servers or the machine kept the probe waiting.
func (p *probe) heldUp(from, to time.Time) (total time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.held {
		begin, end := s.from, s.to
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		total += max(0, end.Sub(begin))
	}
	return total
}

// tooBusy is the share of time in which the probe may be held up on a machine where a limit of milliseconds says something.
const tooBusy = 0.1

// fair is the limit, or 20 times that where the machine is too busy to hold anybody to it.
func (p *probe) fair(tb testing.TB, limit time.Duration) time.Duration {
	tb.Helper()
	now := time.Now()
	busy := float64(p.heldUp(p.began, now)) / float64(now.Sub(p.began))
	if busy <= tooBusy {
		return limit
	}
	tb.Logf("this machine is too busy to measure %s: the probe was held up for %.0f %% of the time", limit, 100*busy)
	return 20 * limit
}
