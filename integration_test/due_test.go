package integration_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What becomes due rings no bell, and no scan finds it in these tests.

func TestScheduledEventsComeWhenTheyAreDue(t *testing.T) {
	for _, test := range []struct {
		name, availableAt string
		events            int
		limit             time.Duration
	}{
		{"one after another", "now() + interval '1 second' + n * interval '10 milliseconds'", 200, 250 * time.Millisecond},
		{"many at once", "now() + interval '1 second'", 2000, time.Second}, // publishing takes its time
		{"the latest first", "now() + interval '2 seconds' - n * interval '20 milliseconds'", 50, 250 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOutbox(t)
			c := o.consume()
			p := o.probe()
			relay := o.relay(noScan).asleep(o)
			l := newLedger()
			o.insertDue(l, "scheduled", test.events, test.availableAt)
			o.reconcile(l, c)
			o.within(test.limit, l, c, p)
			for id, e := range l.committed {
				if at := c.deliveries[id][0].at; at.Before(e.at) {
					t.Errorf("an event that was due at %s came at %s", e.at, at)
				}
			}
			relay.scanFoundNothing()
			relay.stop()
		})
	}
}

func TestRetriesComeWhenTheyAreDue(t *testing.T) {
	o := newOutbox(t)
	c := o.consume("routed")
	p := o.probe()
	full := "full-" + o.exchange
	queue(t, c, full, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"}, o.exchange, "nacked")
	must(t, c.channel.Publish("", full, false, false, amqp.Publishing{}))

	for _, test := range []struct {
		name string
		mend func()
	}{
		{"returned", func() { must(t, c.channel.QueueBind(c.queue, "returned", o.exchange, false, nil)) }},
		{"nacked", func() {
			_, err := c.channel.QueuePurge(full, false)
			must(t, err)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			relay := o.relay(noScan, "--backoff-base=1s").asleep(o)
			o.insert(newLedger(), test.name, 1)
			var due time.Time
			o.eventually(patience, "it has failed once", func() bool {
				return o.pool.QueryRow(t.Context(), `select available_at from `+o.events+` where event_type = $1 and status = 'FAILED'
					and attempts = 1 and last_error <> ''`, test.name).Scan(&due) == nil
			})
			test.mend()
			var published time.Time
			o.eventually(10*time.Second, "it is published then", func() bool {
				return o.pool.QueryRow(t.Context(), `select published_at from `+o.events+` where event_type = $1 and status = 'PUBLISHED'
					and attempts = 2`, test.name).Scan(&published) == nil
			})
			late, held := published.Sub(due), p.heldUp(due, published)
			t.Logf("published %s after it was due, the probe was held up for %s", late, held)
			if late < 0 || late-held > p.fair(t, 250*time.Millisecond) {
				t.Errorf("published %s after it was due, want 250 ms at most", late)
			}
			relay.stop()
		})
	}
}

// queue declares and binds one that the test's clean-up deletes.
func queue(t *testing.T, c *consumer, name string, args amqp.Table, exchange, key string) {
	t.Helper()
	_, err := c.channel.QueueDeclare(name, false, true, false, false, args)
	must(t, err)
	must(t, c.channel.QueueBind(name, key, exchange, false, nil))
	t.Cleanup(func() { _, _ = c.channel.QueueDelete(name, false, false, false) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
