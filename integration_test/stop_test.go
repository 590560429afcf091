package integration_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/stack/stacktest"
)

func TestStopInABurst(t *testing.T) {
	o := newOutbox(t)
	c := o.consume()
	l := newLedger()
	relay := o.relay(noScan).asleep(o)
	o.insert(l, "burst", 20_000)
	o.eventually(patience, "the burst flows", func() bool { return c.events() > 1000 })
	began := time.Now()
	relay.stop()
	t.Logf("ended after %s, %d of %d consumed", time.Since(began), c.events(), l.count())
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s to end", took)
	}
	o.nothingClaimed()
	if left := o.count("select count(*) from " + o.events + " where status = 'PENDING'"); left == 0 {
		t.Error("the burst was over before the relay was stopped: the test shows nothing")
	}
	if n := o.count("select coalesce(max(attempts), 0) from " + o.events + " where status = 'PENDING'"); n != 0 {
		t.Errorf("handing back spent %d attempts", n)
	}
	next := o.relay().ready()
	if duplicates := o.reconcile(l, c); duplicates != 0 {
		t.Errorf("%d events came twice after a clean stop", duplicates)
	}
	next.stop()
}

func (o *outbox) nothingClaimed() {
	o.tb.Helper()
	if n := o.count("select count(*) from " + o.events + " where status = 'PUBLISHING'"); n != 0 {
		o.tb.Errorf("%d events are still claimed", n)
	}
}

// The one that stops has sent events into a black hole; the one that stays is asleep and has seen none of them.
func TestAnotherRelayGetsWhatIsHandedBack(t *testing.T) {
	o := newOutbox(t)
	c := o.consume()
	l := newLedger()
	relay := o.stuck(l, 100, "--grace=2s")
	other := o.relay(noScan).asleep(o)
	relay.stop()
	stopped := time.Now()
	o.nothingClaimed()
	o.eventually(patience, "all are consumed", func() bool { return c.events() == l.count() })
	took := time.Since(stopped)
	t.Logf("another relay had them after %s", took)
	if took > time.Second {
		t.Errorf("another relay had them only after %s", took)
	}
	o.reconcile(l, c)
	other.stop()
}

// stuck gives a relay that has sent n events and gets no confirm: its way to RabbitMQ is a black hole.
func (o *outbox) stuck(l *ledger, n int, flags ...string) *process {
	o.tb.Helper()
	broker := stacktest.NewProxy(o.tb, o.amqpURL)
	relay := o.via(o.databaseURL, broker.URL).relay(append([]string{noScan}, flags...)...).asleep(o)
	broker.Stall()
	o.insert(l, "stuck", n)
	o.eventually(patience, "they are claimed", func() bool {
		return o.count("select count(*) from "+o.events+" where status = 'PUBLISHING'") == n
	})
	return relay
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	relay := o.stuck(newLedger(), 10)
	relay.signal(syscall.SIGTERM)
	began := time.Now()
	o.eventually(10*time.Second, "it ends", func() bool {
		relay.signal(syscall.SIGTERM) // a signal that comes twice at once counts as one, so more than once
		select {
		case <-relay.ended:
			return true
		default:
			return false
		}
	})
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("took %s", took)
	}
	if code := relay.exitCode(); code != 1 || !strings.Contains(relay.log.String(), "ending at once") {
		t.Errorf("exit code %d, want 1 and a word of why", code)
	}
}
