package publisher

import (
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func BenchmarkMessage(b *testing.B) {
	for name, spec := range map[string]struct{ route, headers string }{
		"plain":    {},
		"headers":  {headers: `{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tenant":7}`},
		"template": {route: "{{.AggregateType}}.{{.EventType}}"},
	} {
		b.Run(name, func(b *testing.B) {
			r, err := compileRoute(spec.route)
			if err != nil {
				b.Fatal(err)
			}
			m, e := newMapper("outbox", r), made("order.created", 1)[0]
			e.Headers = []byte(spec.headers)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, _, err := m.message(&e, 131072); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

const (
	benchBatch = 500
	benchDepth = 4 // batches in flight
)

// BenchmarkRaw is what the client can do: the same messages, window and returns, without this package.
func BenchmarkRaw(b *testing.B) {
	url := stacktest.AMQP(b)
	ch := dial(b, url)
	if err := ch.ExchangeDeclare("outbox", "topic", true, false, false, false, nil); err != nil {
		b.Fatal(err)
	}
	sink(b, ch)
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	ch.NotifyReturn(make(chan amqp.Return, 10_000))
	m := newMapper("outbox", func(e *event.Event) (string, error) { return e.Type, nil })
	events := made("a", benchBatch)
	_, key, msg, err := m.message(&events[0], 0)
	if err != nil {
		b.Fatal(err)
	}
	pipeline(b, func(n int) func() {
		confirms := make([]*amqp.DeferredConfirmation, n)
		for i := range confirms {
			if confirms[i], err = ch.PublishWithDeferredConfirm("outbox", key, true, false, msg); err != nil {
				b.Fatal(err)
			}
		}
		return func() {
			for _, c := range confirms {
				if !c.Wait() {
					b.Error("not acked")
				}
			}
		}
	})
}

func BenchmarkPublish(b *testing.B) {
	url := stacktest.AMQP(b)
	p, ch := start(b, options(url)), dial(b, url)
	sink(b, ch)
	events := made("a", benchBatch)
	pipeline(b, func(n int) func() {
		await := p.Publish(b.Context(), events[:n])
		return func() { p.want(await(b.Context()), tally(slices.Repeat([]event.Outcome{{Verdict: event.Acked}}, n))) }
	})
}

// BenchmarkLone is one event at a time: the latency of Publish and its Await.
func BenchmarkLone(b *testing.B) {
	url := stacktest.AMQP(b)
	p, ch := start(b, options(url)), dial(b, url)
	sink(b, ch)
	events := made("a", 1)
	for b.Loop() {
		if o := p.Publish(b.Context(), events)(b.Context()); o[0].Verdict != event.Acked {
			b.Fatal(o)
		}
	}
}

func BenchmarkLoneRaw(b *testing.B) {
	url := stacktest.AMQP(b)
	ch := dial(b, url)
	if err := ch.ExchangeDeclare("outbox", "topic", true, false, false, false, nil); err != nil {
		b.Fatal(err)
	}
	sink(b, ch)
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	m := newMapper("outbox", func(e *event.Event) (string, error) { return e.Type, nil })
	_, key, msg, err := m.message(&made("a", 1)[0], 0)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c, err := ch.PublishWithDeferredConfirm("outbox", key, true, false, msg)
		if err != nil || !c.Wait() {
			b.Fatal(err)
		}
	}
}

// sink is a queue that does not grow.
func sink(b *testing.B, ch *amqp.Channel) {
	queue(b, ch, "sink", "outbox", "#", amqp.Table{"x-max-length": int32(1000)})
}

// pipeline sends b.N events in batches, with some of them in flight, as the relay does.
func pipeline(b *testing.B, send func(n int) (wait func())) {
	b.ReportAllocs()
	b.ResetTimer()
	flights, done := make(chan func(), benchDepth-1), make(chan struct{})
	go func() {
		defer close(done)
		for wait := range flights {
			wait()
		}
	}()
	for left := b.N; left > 0; left -= benchBatch {
		flights <- send(min(left, benchBatch))
	}
	close(flights)
	<-done
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
