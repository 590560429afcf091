package publisher

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

// publishAll publishes until no event is Unsent: a channel that closes early leaves some.
func (b *bench) publishAll(events []event.Event) []event.Outcome {
	b.tb.Helper()
	outcomes := make([]event.Outcome, len(events))
	open := make([]int, len(events))
	for i := range open {
		open[i] = i
	}
	for end := time.Now().Add(patience); len(open) > 0; {
		if time.Now().After(end) {
			b.tb.Fatalf("%d are still unsent", len(open))
		}
		b.await(b.Ready(), "ready")
		part := make([]event.Event, len(open))
		for i, n := range open {
			part[i] = events[n]
		}
		var left []int
		for i, o := range b.publish(part...) {
			outcomes[open[i]] = o
			if o.Verdict == event.Unsent {
				left = append(left, open[i])
			}
		}
		open = left
	}
	return outcomes
}

func TestOnlyTheGuiltyPays(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	if err := ch.ExchangeDeclare("secret", "fanout", false, false, true, false, nil); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		spoil   func(*event.Event)
		verdict event.Verdict
		reason  string
	}{
		"missing exchange": {
			func(e *event.Event) { e.Exchange = ptr("nowhere") }, event.Refused,
			`there is no such exchange: exchange "nowhere" with routing key "a" in vhost "` + b.vhost + `" (404 NOT_FOUND`,
		},
		"internal exchange": {
			func(e *event.Event) { e.Exchange = ptr("secret") }, event.Refused, `no permission to publish to exchange "secret"`,
		},
		"too large": {
			func(e *event.Event) { e.Payload = make([]byte, maxBody+1) }, event.Impossible, "RabbitMQ takes at most 134217728",
		},
		"over-long routing key": {
			func(e *event.Event) { e.RoutingKey = ptr(strings.Repeat("é", 128)) }, event.Impossible, "has 256 bytes",
		},
		"headers over frame_max": {
			func(e *event.Event) { e.Headers = []byte(`{"a":"` + strings.Repeat("x", 131072) + `"}`) }, event.Impossible,
			"(frame_max)",
		},
		"CC is no array": {
			func(e *event.Event) { e.Headers = []byte(`{"CC":"x"}`) }, event.Impossible, "only an array",
		},
	} {
		t.Run(name, func(t *testing.T) {
			events := made("a", 1000)
			test.spoil(&events[303])
			outcomes := b.publishAll(events)
			b.want(outcomes, "999 acked, 1 "+test.verdict.String())
			if o := outcomes[303]; o.Verdict != test.verdict || !strings.Contains(o.Reason, test.reason) {
				t.Error(o)
			}
		})
	}
}

func TestManyMissingExchanges(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	events := made("a", 300)
	for i := range events {
		switch i % 3 {
		case 1:
			events[i].Exchange = ptr("nowhere")
		case 2:
			events[i].Exchange = ptr("never")
		}
	}
	b.want(b.publishAll(events), "100 acked, 200 refused")
}

// What is impossible is found before the wire: the connection stays.
func TestImpossibleLeavesTheConnectionAlone(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	proxy := stacktest.NewProxy(t, url)
	b, ch := start(t, options(proxy.URL)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	events := made("a", 6)
	events[0].RoutingKey = ptr(strings.Repeat("é", 128))
	events[1].RoutingKey = ptr(strings.Repeat("k", 255))
	events[2].AggregateID = strings.Repeat("k", 256)
	events[3].Headers = []byte(`{"` + strings.Repeat("k", 256) + `":1}`)
	events[4].Headers = []byte(`[1]`)
	b.want(b.publish(events...), "2 acked, 4 impossible")
	b.want(b.publish(made("a", 1)...), "1 acked")
	if n := proxy.Accepted(); n != 1 {
		t.Error("connections: ", n)
	}
}

// What passes the mapper must pass the broker, too.
func TestOddEvents(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	proxy := stacktest.NewProxy(t, url)
	b, ch := start(t, options(proxy.URL)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	texts := []string{"", " ", "a.b", "#", "*", "é\u2028", "\x00", "\xff\xfe", "'", strings.Repeat("漢", 85)}
	headers := []string{
		"", "null", "{}", `{"":""}`, `{"CC":["x",1,null],"BCC":[]}`, `{"x-death":[1],"x-delay":"a","x-match":{}}`,
		`{"a":[1,[2.5,{"b":[]}],"é",1e999,-0.0,true,null]}`, `{"content_type":{"a":{}},"$":18446744073709551616}`,
		`{"deep":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`,
	}
	times := []time.Time{{}, time.Unix(-1, 0), time.Unix(0, 0), time.Now(), time.Unix(1<<60, 0)}
	events := made("a", len(texts)*len(headers)*len(times))
	for i := range events {
		pick := func(n int) string { return texts[(i+n)%len(texts)] }
		e := &events[i]
		e.Type, e.AggregateType, e.AggregateID, e.ContentType, e.RoutingKey = pick(0), pick(1), pick(2), pick(3), ptr(pick(4))
		e.Headers, e.CreatedAt = []byte(headers[i%len(headers)]), times[i%len(times)]
		e.Sequence, e.Attempt, e.Payload = -int64(i), -i, []byte(pick(5))
	}
	b.want(b.publish(events...), "450 acked")
	if n := proxy.Accepted(); n != 1 {
		t.Error("connections: ", n)
	}
}

// The largest message and headers that pass here must pass the broker, too.
func TestLimitsAreTheBrokers(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", amqp.Table{"x-max-length": int32(0)})
	events := made("a", 2)
	events[0].Payload = make([]byte, maxBody)
	events[1].Headers = []byte(`{"a":""}`)
	_, _, msg, err := b.mapper.message(&events[1], 0)
	if err != nil {
		t.Fatal(err)
	}
	room := 131072 - headerOverhead - tableSize(msg.Headers) - len(msg.ContentType) - len(msg.CorrelationId) -
		len(msg.MessageId) - len(msg.Type) - len(msg.AppId)
	events[1].Headers = []byte(`{"a":"` + strings.Repeat("x", room) + `"}`)
	b.want(b.publish(events...), "2 acked")
	events[1].Headers = []byte(`{"a":"` + strings.Repeat("x", room+1) + `"}`)
	b.want(b.publish(events[1]), "1 impossible")
}

func TestConfiguredExchangeDeletedHeals(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	if err := ch.ExchangeDelete("outbox", false, false); err != nil {
		t.Fatal(err)
	}
	for _, o := range b.publish(made("a", 100)...) {
		if o.Verdict != event.Unknown && o.Verdict != event.Unsent && o.Verdict != event.Returned {
			t.Fatal(o)
		}
	}
	b.await(b.Ready(), "ready again")
	queue(t, ch, "all", "outbox", "#", nil)
	b.want(b.publishAll(made("a", 100)), "100 acked")
}

// Nobody declares it, so the relay waits until somebody does.
func TestConfiguredExchangeMissing(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	o := options(url)
	o.ExchangeType = ""
	b, ch := run(t, o), dial(t, url)
	eventually(t, "the error is logged", func() bool { return strings.Contains(b.logs.String(), "does not exist") })
	if r := b.State().Reason; !strings.Contains(r, `exchange "outbox" in vhost "`+b.vhost+`" does not exist`) ||
		!strings.Contains(r, "--exchange-type") {
		t.Error(r)
	}
	b.want(b.publish(made("a", 2)...), "2 unsent")
	if err := ch.ExchangeDeclare("outbox", "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	b.await(b.Ready(), "ready")
}

func TestPermissionLostAndGranted(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	stacktest.Rabbitmqctl(t, "set_permissions", "-p", b.vhost, "guest", ".*", "^nothing$", ".*")
	// Permissions are cached by the channel, so the first refusal may take another one.
	eventually(t, "refused", func() bool {
		outcomes := b.publish(made("a", 5)...)
		for _, o := range outcomes {
			switch o.Verdict {
			case event.Unknown, event.Unsent, event.Acked:
			default:
				t.Fatal(o)
			}
		}
		return b.refused.Load()
	})
	if n := strings.Count(b.logs.String(), "refuses the configured exchange, trying on"); n != 1 {
		t.Errorf("%d lines about it:\n%s", n, b.logs)
	}
	stacktest.Rabbitmqctl(t, "set_permissions", "-p", b.vhost, "guest", ".*", ".*", ".*")
	eventually(t, "accepted", func() bool {
		b.await(b.Ready(), "ready")
		return b.publish(made("a", 1)...)[0].Verdict == event.Acked
	})
	if !strings.Contains(b.logs.String(), "takes messages for the configured exchange again") {
		t.Error(b.logs)
	}
}

// A permission for a routing key is the event's matter, even at the configured exchange.
func TestTopicPermission(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	stacktest.Rabbitmqctl(t, "set_topic_permissions", "-p", b.vhost, "guest", "outbox", "^a", ".*")
	events := made("a", 20)
	events[5].Type = "b"
	outcomes := b.publishAll(events)
	b.want(outcomes, "19 acked, 1 refused")
	if r := outcomes[5].Reason; !strings.Contains(r, `no permission to publish to exchange "outbox" with routing key "b"`) {
		t.Error(r)
	}
	if b.refused.Load() {
		t.Error(b.logs)
	}
}

func TestExchangeOfAnotherType(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	if err := dial(t, url).ExchangeDeclare("outbox", "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	b := run(t, options(url))
	eventually(t, "the error is logged", func() bool { return strings.Contains(b.logs.String(), "no connection") })
	for _, part := range []string{`exchange "outbox"`, "topic", "--exchange-type", "inequivalent arg 'type'"} {
		if r := b.State().Reason; !strings.Contains(r, part) {
			t.Errorf("%s is not in %s", part, r)
		}
	}
}
