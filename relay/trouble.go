package relay

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// dbTrouble is a database that does not answer: waited out with jittered back-off, told in one line when it begins, one a
// minute, and one when it is over.
type dbTrouble struct {
	log      *slog.Logger
	wait     *backoff.ExponentialBackOff
	since    time.Time
	reminded time.Time
	told     *atomic.Pointer[error] // where to tell the error while it lasts
}

func newTrouble(log *slog.Logger) *dbTrouble {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 50*time.Millisecond, 3*time.Second // half as much again by chance: back within 5 s
	return &dbTrouble{log: log, wait: b, told: &atomic.Pointer[error]{}}
}

// met waits before the next try; false: ctx has ended.
func (t *dbTrouble) met(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	t.told.Store(&err)
	now := time.Now()
	switch {
	case t.since.IsZero():
		t.since, t.reminded = now, now
		t.log.Warn("database does not answer", "error", err)
	case now.Sub(t.reminded) >= time.Minute:
		t.reminded = now
		t.log.Warn("database still does not answer", "error", err, "for", now.Sub(t.since).Round(time.Second))
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(t.wait.NextBackOff()):
		return true
	}
}

func (t *dbTrouble) over() {
	if t.since.IsZero() {
		return
	}
	t.log.Info("database answers again", "after", time.Since(t.since).Round(time.Millisecond))
	t.told.Store(nil)
	t.since = time.Time{}
	t.wait.Reset()
}

// missedBell counts what the fallback scan found and no notification told of. One that comes shortly after the scan was
// only slower, so the count waits for it.
type missedBell struct {
	events int
	timer  *time.Timer
}

func (m *missedBell) found(events int) {
	if events == 0 {
		return
	}
	m.events += events
	if m.timer == nil {
		m.timer = time.NewTimer(missedGrace)
	} else {
		m.timer.Reset(missedGrace)
	}
}

func (m *missedBell) rung() { m.events = 0 }

func (m *missedBell) expired() <-chan time.Time {
	if m.timer == nil || m.events == 0 {
		return nil
	}
	return m.timer.C
}

func (m *missedBell) count() int {
	n := m.events
	m.events = 0
	return n
}
