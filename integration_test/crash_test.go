package integration_test

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Each kill hits the relay wherever it is: after a claim, after a send, after a confirm, within a mark.
func TestKilledRelayLosesNothingAndRepeatsNoMoreThanWasInFlight(t *testing.T) {
	t.Parallel()
	const kills, inFlight = 10, 4 * 50
	o := newOutbox(t)
	c := o.consume()
	l := newLedger()
	run := func() *process { return o.relay("--batch-size=50", "--lease=2s", "--confirm-timeout=1s") }

	relay := run().ready()
	stop := o.stream(l, 8, 5*time.Millisecond)
	for range kills {
		seen := c.events()
		moment := seen + 1 + rand.IntN(2000)
		o.eventually(patience, "the stream flows", func() bool { return c.events() > moment })
		relay.kill()
		relay = run()
	}
	relay.ready()
	stop()
	duplicates := o.reconcile(l, c)
	t.Logf("%d events, %d kills, %d came twice", l.count(), kills, duplicates)
	if duplicates > kills*inFlight {
		t.Errorf("%d repeats, more than the %d that can have been in flight", duplicates, kills*inFlight)
	}
	o.attemptsGrow(c)
	relay.stop()
}

// attemptsGrow wants the deliveries of one event to be of different claims.
func (o *outbox) attemptsGrow(c *consumer) {
	o.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, deliveries := range c.deliveries {
		for i := 1; i < len(deliveries); i++ {
			if deliveries[i].attempt <= deliveries[i-1].attempt {
				o.tb.Errorf("event %s came with attempt %d and then with %d", id, deliveries[i-1].attempt, deliveries[i].attempt)
			}
		}
	}
}
