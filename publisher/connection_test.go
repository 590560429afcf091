package publisher

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/stack"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestConnectsAgain(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	proxy := stacktest.NewProxy(t, url)
	b, ch := start(t, options(proxy.URL)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	drop := func() {
		proxy.Cut()
		proxy.Resume(t)
	}
	closeAll := func() { stacktest.Rabbitmqctl(t, "close_all_connections", "--vhost", b.vhost, "maintenance") }
	for _, end := range []func(){closeAll, drop, drop, drop, drop} { // a password was lost once (amqp091-go#387)
		lost := b.current.Load().lost
		end()
		b.await(lost, "lost")
		eventually(t, "connected again", func() bool { return b.State().Connected })
		b.want(b.publishAll(made("a", 10)), "10 acked")
	}
	if n := count(t, dial(t, url), "all"); n != 50 {
		t.Error("in the queue: ", n)
	}
	if text := b.logs.String(); strings.Count(text, "320 CONNECTION_FORCED - maintenance") != 1 ||
		strings.Count(text, "lost the connection") != 5 || strings.Count(text, "connected to RabbitMQ") != 6 ||
		strings.Contains(text, "ACCESS_REFUSED") {
		t.Error(text)
	}
}

// The alarm is the whole broker's, so it is a broker of this test's own.
func TestBlocked(t *testing.T) {
	t.Parallel()
	own := stacktest.Own(t, stack.Options{NoPostgres: true})
	proxy := stacktest.NewProxy(t, own.AMQPURL)
	o := options(proxy.URL + "?heartbeat=2")
	o.ConfirmTimeout = 3 * time.Second
	b, ch := start(t, o), dial(t, own.AMQPURL)
	queue(t, ch, "all", "outbox", "#", nil)
	b.want(b.publish(made("a", 10)...), "10 acked")

	alarm(t, own, "0")
	// Far more than sockets hold, and by a broker that reads no more.
	events := made("a", 500)
	for i := range events {
		events[i].Payload = make([]byte, 100_000)
	}
	await := b.Publish(t.Context(), events)
	eventually(t, "blocked", func() bool { return b.State().Blocked })
	if r := b.State().Reason; r != "low on memory" {
		t.Error(r)
	}
	select {
	case <-b.Ready():
		t.Error("ready in an alarm")
	default:
	}
	b.want(b.Publish(t.Context(), made("a", 3))(t.Context()), "3 unsent")

	// Longer than heartbeats and confirm timeout allow for, were they counted.
	taken := make(chan string)
	go func() { taken <- tally(await(t.Context())) }()
	select {
	case got := <-taken:
		t.Fatalf("settled in an alarm: %s\n%s", got, b.logs)
	case <-time.After(8 * time.Second):
	}
	alarm(t, own, "0.6")
	got := <-taken
	if !strings.Contains(got, "acked") || strings.Contains(got, "unknown") {
		t.Error(got)
	}
	b.await(b.Ready(), "ready again")
	b.want(b.publish(made("a", 10)...), "10 acked")
	if n := proxy.Accepted(); n != 1 {
		t.Errorf("%d connections\n%s", n, b.logs)
	}

	alarm(t, own, "0")
	await = b.Publish(t.Context(), events)
	eventually(t, "blocked again", func() bool { return b.State().Blocked })
	b.stopsWithin(t, time.Second)
	if got := tally(await(t.Context())); !strings.Contains(got, "unknown") {
		t.Error(got)
	}
	if text := b.logs.String(); strings.Count(text, "blocks publishers") != 2 || strings.Count(text, "takes messages again") != 1 {
		t.Error(text)
	}
}

func (b *bench) stopsWithin(t *testing.T, limit time.Duration) {
	t.Helper()
	began := time.Now()
	b.stop()
	if d := time.Since(began); d > limit {
		t.Error("stopping took ", d)
	}
}

func alarm(t *testing.T, s *stack.Stack, watermark string) {
	t.Helper()
	if out, err := s.Rabbitmqctl(t.Context(), "set_vm_memory_high_watermark", watermark); err != nil {
		t.Fatal(err, out)
	}
}

// A frozen broker holds up neither Publish, once it is to stop, nor the end of Run, with a connection or without.
func TestFrozen(t *testing.T) {
	t.Parallel()
	own := stacktest.Own(t, stack.Options{NoPostgres: true})
	o := options(own.AMQPURL)
	o.ConfirmTimeout = time.Second
	b, idle, lost := start(t, o), start(t, o), start(t, o)
	if err := own.RabbitMQ.Freeze(); err != nil {
		t.Fatal(err)
	}
	events := made("a", 1000)
	for i := range events {
		events[i].Payload = make([]byte, 100_000)
	}
	for _, p := range []*bench{b, lost} {
		stop, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		await := p.Publish(stop, events) // fills all buffers, and waits
		if outcomes := await(t.Context()); !strings.Contains(tally(outcomes), "unsent") ||
			!strings.Contains(fmt.Sprint(outcomes), "--confirm-timeout") {
			t.Error(tally(outcomes), outcomes[0])
		}
	}
	idle.stopsWithin(t, 2*farewell)
	lost.stopsWithin(t, farewell)
	if err := own.RabbitMQ.Thaw(); err != nil {
		t.Fatal(err)
	}
	b.await(b.Ready(), "ready")
}

func TestHalfOpen(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	proxy := stacktest.NewProxy(t, url)
	b := start(t, options(proxy.URL+"?heartbeat=2"))
	s := b.current.Load()
	proxy.StallOpen()
	began := time.Now()
	b.await(s.lost, "lost")
	if d := time.Since(began); d > 2*2*time.Second {
		t.Error("found after ", d)
	}
	eventually(t, "connected again", func() bool { return b.State().Connected })
}

func TestFailOver(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	first, second := stacktest.NewProxy(t, url), stacktest.NewProxy(t, url)
	o := options("")
	o.URLs = []string{first.URL, second.URL}
	b := start(t, o)
	first.Cut()
	eventually(t, "connected to the second", func() bool { return b.State().Connected && second.Accepted() == 1 })
	b.want(b.publish(made("a", 1)...), "1 returned")
	second.Cut()
	first.Resume(t)
	eventually(t, "connected to the first", func() bool { return b.State().Connected && first.Accepted() == 2 })
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	proxy := stacktest.NewProxy(t, url)
	b := start(t, options(proxy.URL))
	proxy.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	outcomes := b.Publish(t.Context(), made("a", 3))(ctx)
	b.want(outcomes, "3 unknown")
	if r := outcomes[0].Reason; r != "sent, but the relay stopped before a confirm came" {
		t.Error(r)
	}
}

func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	for name, test := range map[string]struct {
		from, to string
		parts    []string
	}{
		"wrong password": {"guest:guest@", "guest:s3cret-word@", []string{`user "guest" is refused`, "not allowed"}},
		"missing vhost":  {"/test", "/missing", []string{`vhost "missing`, "530 NOT_ALLOWED"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := run(t, options(strings.Replace(url, test.from, test.to, 1)))
			eventually(t, "an error is logged", func() bool { return strings.Contains(b.logs.String(), "no connection") })
			for _, part := range test.parts {
				if r := b.State().Reason; !strings.Contains(r, part) {
					t.Errorf("%s is not in %s", part, r)
				}
			}
			if text := b.State().Reason + b.logs.String(); strings.Contains(text, "s3cret") {
				t.Error(text)
			}
		})
	}
}

func TestDelays(t *testing.T) {
	var b backoff
	var total time.Duration
	for n := range 20 {
		d := b.next(nil)
		total += d
		if d < min(firstDelay<<n, outageDelay) || d > 5*time.Second {
			t.Errorf("delay %d: %s", n, d)
		}
	}
	if total < time.Minute {
		t.Error(total)
	}
}
