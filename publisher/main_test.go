package publisher

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come soon.
const patience = 30 * time.Second

// A bench is a running publisher and a connection of the test's own to the same vhost.
type bench struct {
	*Publisher
	tb    testing.TB
	vhost string
	logs  *logs
	stop  func() // ends Run, and waits for it
}

func options(url string) Options {
	return Options{
		URLs: []string{url}, Exchange: "outbox", ExchangeType: "topic",
		ConfirmTimeout: patience, MaxInFlight: 10_000, Instance: "outbox-relay test",
	}
}

// start runs a publisher until the test ends, and returns when it is ready.
func start(tb testing.TB, o Options) *bench {
	tb.Helper()
	b := run(tb, o)
	b.await(b.Ready(), "ready")
	return b
}

// run does not wait for readiness.
func run(tb testing.TB, o Options) *bench {
	tb.Helper()
	b := &bench{tb: tb, logs: &logs{}}
	o.Logger = slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	b.Publisher, b.vhost = p, p.endpoints[0].uri.Vhost
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			tb.Error(err)
		}
	}()
	b.stop = func() {
		cancel()
		<-ended
	}
	tb.Cleanup(func() {
		b.stop()
		if tb.Failed() {
			tb.Log(b.logs)
		}
	})
	return b
}

// dial gives the test a channel of its own.
func dial(tb testing.TB, url string) *amqp.Channel {
	tb.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		tb.Fatal(err)
	}
	return ch
}

// queue declares a queue bound to an exchange.
func queue(tb testing.TB, ch *amqp.Channel, name, exchange, key string, args amqp.Table) {
	tb.Helper()
	if _, err := ch.QueueDeclare(name, false, false, false, false, args); err != nil {
		tb.Fatal(err)
	}
	if err := ch.QueueBind(name, key, exchange, false, nil); err != nil {
		tb.Fatal(err)
	}
}

func count(tb testing.TB, ch *amqp.Channel, queue string) int {
	tb.Helper()
	q, err := ch.QueueDeclarePassive(queue, false, false, false, false, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return q.Messages
}

func (b *bench) await(signal <-chan struct{}, what string) {
	b.tb.Helper()
	select {
	case <-signal:
	case <-time.After(patience):
		b.tb.Fatalf("not %s after %s; state %+v\n%s", what, patience, b.State(), b.logs)
	}
}

// eventually polls what no channel tells.
func eventually(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal("not after ", patience, ": ", what)
		}
	}
}

// publish sends the events and takes their outcomes.
func (b *bench) publish(events ...event.Event) []event.Outcome {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	return b.Publish(ctx, events)(ctx)
}

// tally counts verdicts, as "2 acked, 1 nacked".
func tally(outcomes []event.Outcome) string {
	var counts [event.Impossible + 1]int
	for _, o := range outcomes {
		counts[o.Verdict]++
	}
	var parts []string
	for verdict, n := range counts {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, event.Verdict(verdict)))
		}
	}
	return strings.Join(parts, ", ")
}

func (b *bench) want(outcomes []event.Outcome, tallied string) {
	b.tb.Helper()
	if got := tally(outcomes); got != tallied {
		b.tb.Fatalf("got %s, want %s; last: %+v\n%s", got, tallied, outcomes[len(outcomes)-1], b.logs)
	}
}

func made(kind string, n int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{
			ID: uuid.Must(uuid.NewV7()), Sequence: int64(i + 1), AggregateType: "order", AggregateID: fmt.Sprint(i),
			Type: kind, Payload: []byte(`{"total":7}`), ContentType: "application/json", CreatedAt: time.Now(), Attempt: 1,
		}
	}
	return events
}

func ptr[T any](v T) *T { return &v }

// logs collects log lines.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
