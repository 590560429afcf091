package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/scanner"
)

// fakes are a table and a broker whose failures a real one does not give on demand, at a given moment.
type fakes struct {
	mu      sync.Mutex
	pending []event.Event
	claims  int
	settled []event.Settlement

	claimErr  error
	settleErr error
	settles   int
	verdict   event.Verdict
	mute      bool // no confirm comes
	ready     chan struct{}
}

func (f *fakes) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fakes) ClaimFresh(_ context.Context, _ bool, limit scanner.Limit) (c scanner.Claim, l scanner.Look, err error) {
	f.locked(func() {
		f.claims++
		if err = f.claimErr; err != nil {
			return
		}
		n := min(limit.Events, len(f.pending))
		c = scanner.Claim{ID: uuid.New(), Events: f.pending[:n], Cut: n == limit.Events}
		f.pending = f.pending[n:]
	})
	return c, l, err
}

func (f *fakes) ClaimRung(ctx context.Context, limit scanner.Limit) (scanner.Claim, scanner.Look, error) {
	return f.ClaimFresh(ctx, false, limit)
}

func (f *fakes) ClaimDue(context.Context, bool, scanner.Limit) (scanner.Claim, error) {
	return scanner.Claim{}, nil
}

func (f *fakes) Settle(_ context.Context, s []event.Settlement) (lost int, err error) {
	f.locked(func() {
		f.settles++
		if err = f.settleErr; err == nil {
			f.settled = append(f.settled, s...)
		}
	})
	return 0, err
}

func (f *fakes) ExpireLeases(context.Context) ([]scanner.Expired, error) { return nil, nil }
func (f *fakes) RenewLeases(context.Context, []scanner.Held) error       { return nil }
func (f *fakes) Prune(context.Context) (int64, time.Duration, error)     { return 0, time.Hour, nil }

func (f *fakes) Ready() <-chan struct{} { return f.ready }

// Publish gives the verdict at once, or none until its context ends; what it can't send any more is Unsent.
func (f *fakes) Publish(sending context.Context, events []event.Event) Await {
	unsent := sending.Err() != nil
	return func(ctx context.Context) []event.Outcome {
		outcomes := make([]event.Outcome, len(events))
		if unsent {
			return outcomes
		}
		verdict := f.verdict
		if f.mute {
			<-ctx.Done()
			verdict = event.Unknown
		}
		for i := range outcomes {
			outcomes[i].Verdict = verdict
		}
		return outcomes
	}
}

func (f *fakes) count(status event.Status) (n int) {
	f.locked(func() {
		for _, s := range f.settled {
			if s.Status == status {
				n++
			}
		}
	})
	return n
}

func opened() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// run starts a relay in a bubble of synctest. stop ends it and gives what Run returned and how long that took.
func run(t *testing.T, f *fakes) (stop func() (took time.Duration, err error)) {
	t.Helper()
	r := New(Options{
		ScanInterval: time.Second, BatchSize: 10, Lease: time.Minute, Grace: 20 * time.Second, Policy: policy,
		InFlight: 40, InFlightSize: 1 << 20,
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	}, f, f, f, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan error, 1)
	go func() { returned <- r.Run(ctx) }()
	return func() (time.Duration, error) {
		began := time.Now()
		cancel()
		err := <-returned
		return time.Since(began), err
	}
}

func TestDatabaseThatFailsWhileSettlingIsTriedUntilItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{ready: opened(), pending: make([]event.Event, 25), verdict: event.Acked, settleErr: errors.New("away")}
		stop := run(t, f)
		time.Sleep(10 * time.Minute)
		f.locked(func() {
			if f.settles < 100 || f.settles > 300 {
				t.Errorf("tried %d times in ten minutes", f.settles)
			}
			f.settleErr = nil
		})
		time.Sleep(10 * time.Second)
		if n := f.count(event.Published); n != 25 {
			t.Errorf("%d PUBLISHED, want 25", n)
		}
		if took, err := stop(); err != nil || took > time.Second {
			t.Errorf("ended with %v after %s", err, took)
		}
	})
}

func TestDatabaseThatFailsToTheEndLeavesTheLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{ready: opened(), pending: make([]event.Event, 5), verdict: event.Acked, settleErr: errors.New("away")}
		stop := run(t, f)
		time.Sleep(time.Minute)
		took, err := stop()
		if !errors.Is(err, ErrUnsettled) || took != 20*time.Second {
			t.Errorf("ended with %v after %s, want ErrUnsettled at the end of the grace", err, took)
		}
	})
}

func TestClaimsThatFailAreNotStormed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{ready: opened(), claimErr: errors.New("away")}
		stop := run(t, f)
		time.Sleep(10 * time.Minute)
		f.locked(func() {
			if f.claims < 100 || f.claims > 300 {
				t.Errorf("%d claims in ten minutes", f.claims)
			}
		})
		if took, err := stop(); err != nil || took > time.Second {
			t.Errorf("ended with %v after %s", err, took)
		}
	})
}

func TestNothingIsClaimedWhileTheBrokerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{ready: make(chan struct{}), pending: make([]event.Event, 5), verdict: event.Acked}
		stop := run(t, f)
		time.Sleep(time.Hour)
		f.locked(func() {
			if f.claims != 0 {
				t.Errorf("%d claims", f.claims)
			}
		})
		close(f.ready)
		time.Sleep(10 * time.Millisecond)
		if n := f.count(event.Published); n != 5 {
			t.Errorf("%d PUBLISHED, want 5", n)
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// No confirm comes any more: the window fills, no more is claimed, and at the end all is handed back within the grace.
func TestStopWaitsForConfirmsAndThenHandsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{ready: opened(), pending: make([]event.Event, 100), mute: true}
		stop := run(t, f)
		time.Sleep(time.Minute)
		f.locked(func() {
			if left := len(f.pending); left != 60 {
				t.Errorf("%d left unclaimed, want 60: 40 may be in flight", left)
			}
		})
		took, err := stop()
		if err != nil || took != 15*time.Second {
			t.Errorf("ended with %v after %s, want three quarters of the grace", err, took)
		}
		if n := f.count(event.Pending); n != 40 {
			t.Errorf("%d handed back, want 40", n)
		}
		for _, s := range f.settled {
			if !s.Refund {
				t.Error("an attempt was charged")
			}
		}
	})
}
