package relay

import (
	"sync"
	"time"
)

// watch keeps a relay from taking a database's absence for the death of the others. While it was away nobody could renew a
// lease, so all may have ended when it is back; whoever lives renews within a quarter of the lease, so wait for half of it.
// A database that only this relay could not reach costs the same wait and no more. Any goroutine may call its methods.
type watch struct {
	lease time.Duration

	mu       sync.Mutex
	answered time.Time // last; zero: not yet
	back     time.Time // when it answered after an absence; zero: there was none
}

func (w *watch) noteAnswer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.absentAt(now) {
		w.back = now
	}
	w.answered = now
}

// absent tells whether the database has not answered for so long that leases may have ended for it.
func (w *watch) absent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.absentAt(time.Now())
}

func (w *watch) absentAt(now time.Time) bool {
	return !w.answered.IsZero() && now.Sub(w.answered) > w.lease*3/4
}

// othersHadTime tells whether a lease that has ended now is that of a relay that died or sleeps.
func (w *watch) othersHadTime() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	return !w.absentAt(now) && now.Sub(w.back) >= w.lease/2
}
