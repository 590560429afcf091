package integration_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Sixteen writers keep the relay between sleep and wake.
func TestNoWakeUpIsLost(t *testing.T) {
	o := newOutbox(t)
	c := o.consume()
	p := o.probe()
	relay := o.relay(noScan).asleep(o)
	l := newLedger()
	o.commitOneByOne(l, 16, 1250, 50*time.Millisecond)
	if duplicates := o.reconcile(l, c); duplicates != 0 {
		t.Errorf("%d events came twice", duplicates)
	}
	o.within(250*time.Millisecond, l, c, p)
	relay.scanFoundNothing()
	relay.stop()
}

// A burst keeps the relay awake. Writers that insert then do not ring; they commit when it has calmed down, and nobody comes
// after them: the next burst begins when all is consumed.
func TestFallingAsleepLosesNoWakeUp(t *testing.T) {
	const writers, rounds = 16, 150
	o := newOutbox(t)
	c := o.consume()
	p := o.probe()
	// A claim that the batch size cuts short counts as a burst.
	relay := o.relay(noScan, "--batch-size=5").asleep(o)
	l := newLedger()
	for range rounds {
		o.writers(l, writers, func(ctx context.Context, w *writer) error {
			if err := w.write(ctx, transaction{events: 1}); err != nil {
				return err
			}
			return w.write(ctx, transaction{events: 1, business: lasting(rand.N(100 * time.Millisecond))})
		})()
		o.eventually(20*time.Second, "the round is consumed", func() bool { return c.events() == l.count() })
	}
	o.reconcile(l, c)
	o.within(250*time.Millisecond, l, c, p)
	relay.scanFoundNothing()
	relay.stop()
}

// commitOneByOne lets writers commit single events, each with a random pause between INSERT and COMMIT.
func (o *outbox) commitOneByOne(l *ledger, writers, each int, longestPause time.Duration) {
	o.tb.Helper()
	o.writers(l, writers, func(ctx context.Context, w *writer) error {
		for range each {
			if err := w.write(ctx, transaction{events: 1, business: lasting(rand.N(longestPause))}); err != nil {
				return err
			}
		}
		return nil
	})()
}

func (p *process) scanFoundNothing() {
	p.tb.Helper()
	if n := p.metric(`outbox_events_claimed_total{reason="scan"}`); n != 0 {
		p.tb.Errorf("%v events were found by the scan", n)
	}
	if n := p.metric("outbox_missed_notifications_total"); n != 0 {
		p.tb.Errorf("%v notifications were missed", n)
	}
}

func TestWithoutTheTriggerTheScanFindsAllAndTells(t *testing.T) {
	o := newOutbox(t)
	o.exec("drop trigger events_doorbell on " + o.events)
	c := o.consume()
	p := o.probe()
	relay := o.relay("--scan-interval=1s").asleep(o)
	l := newLedger()
	o.commitOneByOne(l, 4, 50, 100*time.Millisecond)
	o.reconcile(l, c)
	o.within(2*time.Second, l, c, p)
	o.eventually(patience, "missed notifications are counted", func() bool {
		return relay.metric("outbox_missed_notifications_total") > 0
	})
	if !strings.Contains(relay.log.String(), "the scan found events that no notification told of") {
		t.Error("the log says nothing of it")
	}
	relay.stop()
}

func TestWithoutNotificationsTheScanFindsAll(t *testing.T) {
	o := newOutbox(t)
	c := o.consume()
	p := o.probe()
	relay := o.relay("--wake=none", "--scan-interval=1s").ready()
	l := newLedger()
	o.commitOneByOne(l, 4, 50, 100*time.Millisecond)
	o.reconcile(l, c)
	o.within(2*time.Second, l, c, p)
	if n := relay.metric("outbox_missed_notifications_total"); n != 0 {
		t.Errorf("%v notifications were missed, though none were asked for", n)
	}
	relay.stop()
}

// While the listener is away nobody rings; the look after each reconnect has to find what came in between. The next event is
// committed only when the last was consumed, so that none is found on behalf of another.
func TestEventsWaitNoLongerThanForTheListenersReconnect(t *testing.T) {
	o := newOutbox(t)
	c := o.consume()
	p := o.probe()
	relay := o.relay(noScan).asleep(o)
	l := newLedger()
	terminated := 0
	next := time.Now()
	for end := next.Add(8 * time.Second); time.Now().Before(end); {
		if time.Now().After(next) {
			terminated += o.terminateListener()
			next = next.Add(200 * time.Millisecond)
		}
		o.insert(l, "alone", 1)
		o.eventually(20*time.Second, "it is consumed", func() bool { return c.events() == l.count() })
	}
	o.reconcile(l, c)
	o.within(time.Second, l, c, p)
	relay.scanFoundNothing()
	t.Logf("the listener was terminated %d times", terminated)
	if terminated < 10 {
		t.Errorf("the listener was terminated only %d times", terminated)
	}
	relay.stop()
}

// terminateListener ends the sessions that listen, and returns how many.
func (o *outbox) terminateListener() int {
	o.tb.Helper()
	return o.count(`select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database()
		and application_name like 'outbox-relay %' and query ~* '^(listen |select pg_advisory_|select pg_current_xact_id)'`)
}

// A transaction that inserted while no relay was asleep rings nobody, however late it commits.
func TestLongTransactionIsSeenSoonAfterItsCommit(t *testing.T) {
	o := newOutbox(t)
	c := o.consume()
	p := o.probe()
	l := newLedger()
	inserted, commit := make(chan struct{}), make(chan struct{})
	wait := o.writers(l, 1, func(ctx context.Context, w *writer) error {
		return w.write(ctx, transaction{events: 1, business: func() { close(inserted); <-commit }})
	})
	<-inserted
	relay := o.relay(noScan).ready()
	o.insert(l, "another", 100)
	o.eventually(patience, "the others do not wait for it", func() bool { return c.events() == 100 })
	time.Sleep(6 * time.Second) // it is a long one
	close(commit)
	wait()
	o.reconcile(l, c)
	o.within(time.Second, l, c, p)
	relay.scanFoundNothing()
	relay.stop()
}
