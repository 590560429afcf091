package publisher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestAcked(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "all", "outbox", "#", nil)
	sent := made("order.created", 3)
	sent[0].Headers = []byte(`{"traceparent":"00-1","big":12345678901234567890,"n":7,"x-outbox-attempt":9}`)
	sent[1].RoutingKey = ptr("other.key")
	sent[2].Exchange, sent[2].RoutingKey = ptr(""), ptr("all")
	b.want(b.publish(sent...), "3 acked")

	for i, key := range []string{"order.created", "other.key", "all"} {
		got, ok, err := ch.Get("all", true)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		e := &sent[i]
		if got.RoutingKey != key || got.MessageId != e.ID.String() || got.Type != e.Type || got.AppId != "outbox-relay" ||
			got.CorrelationId != e.AggregateID || got.DeliveryMode != amqp.Persistent || got.Timestamp.Unix() != e.CreatedAt.Unix() ||
			got.ContentType != e.ContentType || string(got.Body) != string(e.Payload) {
			t.Errorf("got %+v of %+v", got, e)
		}
		want := amqp.Table{
			"x-outbox-aggregate-type": "order", "x-outbox-aggregate-id": fmt.Sprint(i),
			"x-outbox-sequence": int64(i + 1), "x-outbox-attempt": int64(1),
		}
		if i == 0 {
			want["traceparent"], want["big"], want["n"] = "00-1", "12345678901234567890", int64(7)
		}
		if fmt.Sprint(got.Headers) != fmt.Sprint(want) {
			t.Errorf("got headers %v, want %v", got.Headers, want)
		}
	}
}

func TestNacked(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "small", "outbox", "#", amqp.Table{"x-max-length": int32(3), "x-overflow": "reject-publish"})
	outcomes := b.publish(made("a", 10)...)
	b.want(outcomes, "3 acked, 7 nacked")
	if r := outcomes[9].Reason; !strings.Contains(r, `exchange "outbox" with routing key "a"`) {
		t.Error(r)
	}
}

func TestReturned(t *testing.T) {
	t.Parallel()
	b := start(t, options(stacktest.AMQP(t)))
	outcomes := b.publish(made("a", 1)...)
	b.want(outcomes, "1 returned")
	if r := outcomes[0].Reason; r != `no queue is bound to exchange "outbox" with routing key "a" (312 NO_ROUTE)` {
		t.Error(r)
	}
}

func TestReturnsAreCountedExactly(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	b, ch := start(t, options(url)), dial(t, url)
	queue(t, ch, "yes", "outbox", "yes", nil)
	events := made("yes", 5000)
	for i := 1; i < len(events); i += 2 {
		events[i].Type = "no"
	}
	// Ten batches are in flight before the first outcome is taken.
	var awaits []Await
	for chunk := range slices.Chunk(events, 500) {
		awaits = append(awaits, b.Publish(t.Context(), chunk))
	}
	for _, await := range awaits {
		outcomes := await(t.Context())
		b.want(outcomes, "250 acked, 250 returned")
		for i, o := range outcomes {
			if (i%2 == 1) != (o.Verdict == event.Returned) {
				t.Fatal(i, o)
			}
		}
	}
	if n := count(t, ch, "yes"); n != 2500 {
		t.Error("in the queue: ", n)
	}
}

func TestSameEventTwiceInFlight(t *testing.T) {
	t.Parallel()
	b := start(t, options(stacktest.AMQP(t)))
	e := made("a", 1)[0]
	b.want(b.publish(e, e), "2 returned")
}

func TestMoreThanMaxInFlightIsUnsent(t *testing.T) {
	t.Parallel()
	url := stacktest.AMQP(t)
	o := options(url)
	o.MaxInFlight = 10
	b := start(t, o)
	first, second := b.Publish(t.Context(), made("a", 8)), b.Publish(t.Context(), made("a", 8))
	b.want(first(t.Context()), "8 returned")
	b.want(second(t.Context()), "6 unsent, 2 returned")
	b.want(b.publish(made("a", 10)...), "10 returned")
}

func TestNoRoomAfterStop(t *testing.T) {
	t.Parallel()
	b := start(t, options(stacktest.AMQP(t)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.want(b.Publish(ctx, made("a", 3))(t.Context()), "3 unsent")
}
