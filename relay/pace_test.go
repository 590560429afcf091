package relay

import (
	"context"
	"testing"
	"time"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/scanner"
)

// fakeBell is a bell whose lock is there as soon as it is asked for, since transaction xid.
type fakeBell struct {
	silence
	rests bool
	xid   uint64
	deaf  bool // not connected
}

func (b *fakeBell) Rest(asleep bool)           { b.rests = asleep }
func (b *fakeBell) Asleep() (uint64, bool)     { return b.xid, b.rests && !b.deaf }
func (b *fakeBell) Ring(context.Context) error { return nil }

func claimed(n int) scanner.Claim { return scanner.Claim{Events: make([]event.Event, n)} }

// steady lets n events a second arrive for so long, looked for every 10 ms.
func steady(p *pace, now time.Time, n int, during time.Duration) time.Time {
	for end := now.Add(during); now.Before(end); {
		now = now.Add(10 * time.Millisecond)
		p.looked(now, false, claimed(n/100), scanner.Look{})
	}
	return now
}

func TestBusyStreamIsPolledAndAQuietOneRings(t *testing.T) {
	bell := &fakeBell{}
	p := &pace{interval: time.Hour, bell: bell}
	now := time.Now()
	p.looked(now, true, claimed(0), scanner.Look{})
	for _, step := range []struct {
		rate int
		busy bool
	}{
		{100, false},
		{900, false}, // below the upper threshold: not yet
		{1500, true},
		{800, true}, // above the lower one: still
		{300, false},
		{800, false},
		{5000, true},
		{0, false},
	} {
		now = steady(p, now, step.rate, time.Second)
		if p.busy != step.busy || bell.rests == step.busy {
			t.Errorf("at %d events a second: busy %t, rests %t; want busy %t", step.rate, p.busy, bell.rests, step.busy)
		}
		if wait, sleep := p.wait(now, claimed(1), scanner.Look{}); step.busy && (wait != pollInterval || sleep) {
			t.Errorf("at %d events a second: waits %s, sleep %t", step.rate, wait, sleep)
		}
	}
}

func TestSleepsOnlyWhenNothingOlderThanTheLockIsOpen(t *testing.T) {
	const interval = 5 * time.Second
	for _, test := range []struct {
		name  string
		bell  fakeBell
		look  scanner.Look
		claim scanner.Claim
		wait  time.Duration
		sleep bool
	}{
		{"all older ones have ended", fakeBell{rests: true, xid: 7}, scanner.Look{Xmin: 7}, claimed(0), interval, true},
		{"one is open", fakeBell{rests: true, xid: 7}, scanner.Look{Xmin: 6}, claimed(0), pollInterval, false},
		{"the lock is not there yet", fakeBell{xid: 7}, scanner.Look{Xmin: 7}, claimed(0), pollInterval, false},
		{"the listener is away", fakeBell{rests: true, xid: 7, deaf: true}, scanner.Look{Xmin: 7}, claimed(0), pollInterval, false},
		{"there is more", fakeBell{rests: true, xid: 7}, scanner.Look{Xmin: 7}, scanner.Claim{Cut: true}, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Now()
			p := &pace{interval: interval, bell: &test.bell, nextScan: now.Add(interval)}
			if wait, sleep := p.wait(now, test.claim, test.look); wait != test.wait || sleep != test.sleep {
				t.Errorf("waits %s, sleep %t; want %s, %t", wait, sleep, test.wait, test.sleep)
			}
			p.nextScan = now.Add(100 * time.Microsecond)
			if wait, _ := p.wait(now, test.claim, test.look); wait > 100*time.Microsecond {
				t.Errorf("waits %s, beyond the next scan", wait)
			}
			p.nextScan, p.nextDue = now.Add(interval), now.Add(50*time.Microsecond)
			if wait, _ := p.wait(now, test.claim, test.look); wait > 50*time.Microsecond {
				t.Errorf("waits %s, beyond what is due", wait)
			}
			p.nextDue = now.Add(-time.Second)
			if wait, _ := p.wait(now, test.claim, test.look); wait != 0 {
				t.Errorf("waits %s, though something is due", wait)
			}
		})
	}
}

func TestDrowsyLooksBackOff(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name     string
		bell     fakeBell
		interval time.Duration
		waits    []time.Duration
		sleep    bool // a wait of the interval is one
	}{
		{
			"an older transaction is open",
			fakeBell{rests: true, xid: 7},
			time.Minute,
			[]time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 500 * ms, 500 * ms},
			false,
		},
		{"and scans are more frequent", fakeBell{rests: true, xid: 7}, 5 * ms, []time.Duration{ms, 2 * ms, 4 * ms, 5 * ms, 5 * ms}, false},
		{"nobody rings", fakeBell{}, 20 * ms, []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 20 * ms, 20 * ms}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Now()
			p := &pace{interval: test.interval, bell: &test.bell, nextScan: now.Add(time.Hour)}
			open := scanner.Look{Xmin: 6}
			for _, want := range test.waits {
				wait, sleep := p.wait(now, claimed(0), open)
				if wait != want || sleep != (test.sleep && want == test.interval) {
					t.Errorf("waits %s, sleep %t; want %s", wait, sleep, want)
				}
			}
			p.woken()
			if wait, _ := p.wait(now, claimed(0), open); wait != pollInterval {
				t.Errorf("waits %s after it was woken, want %s", wait, pollInterval)
			}
		})
	}
}
