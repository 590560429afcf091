package demo

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// ledger holds what the shop committed against what the consumer received. Any goroutine may write in it. All times are
// readings of this process's clock.
type ledger struct {
	mu        sync.Mutex
	orders    map[uuid.UUID]*order
	strangers []stranger
	counts    tally
	recent    []time.Duration            // from COMMIT to consumed, since the last tally
	took      map[string][]time.Duration // the same, by phase
}

// order is what became of one of the shop's transactions, known by its event's id.
type order struct {
	phase      string
	state      state
	sent       time.Time // just before COMMIT
	deliveries int
}

type state uint8

const (
	inDoubt state = iota // COMMIT was sent
	isCommitted
	isRolledBack
)

// stranger is a message that no transaction of the shop's wrote.
type stranger struct {
	at                    time.Time
	id, eventType, number string
}

// tally counts what is in the ledger so far. latencies are those since the tally before, sorted.
type tally struct {
	committed, rolledBack, consumed, duplicates int
	latencies                                   []time.Duration
}

func newLedger() *ledger {
	return &ledger{orders: map[uuid.UUID]*order{}, took: map[string][]time.Duration{}}
}

func (l *ledger) rollingBack(id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders[id] = &order{state: isRolledBack}
	l.counts.rolledBack++
}

// committing is called just before COMMIT is sent: the message may arrive before the answer to it.
func (l *ledger) committing(id uuid.UUID, phase string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders[id] = &order{phase: phase, sent: time.Now()}
}

func (l *ledger) committed(id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(l.orders[id])
}

func (l *ledger) settle(o *order) {
	if o.state == inDoubt {
		o.state = isCommitted
		l.counts.committed++
	}
}

func (l *ledger) received(now time.Time, messageID, eventType, number string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, err := uuid.Parse(messageID)
	o := l.orders[id]
	if err != nil || o == nil {
		l.strangers = append(l.strangers, stranger{now, messageID, eventType, number})
		return
	}
	o.deliveries++
	if o.deliveries > 1 {
		l.counts.duplicates++
		return
	}
	l.counts.consumed++
	if o.state == isRolledBack {
		return
	}
	l.settle(o) // nothing proves a commit better
	l.recent = append(l.recent, now.Sub(o.sent))
	l.took[o.phase] = append(l.took[o.phase], now.Sub(o.sent))
}

func (l *ledger) tally() tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.counts
	t.latencies, l.recent = l.recent, nil
	slices.Sort(t.latencies)
	return t
}

// latencies gives those of a phase, or of all phases for "", sorted.
func (l *ledger) latencies(phase string) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []time.Duration
	for name, took := range l.took {
		if phase == "" || phase == name {
			all = append(all, took...)
		}
	}
	slices.Sort(all)
	return all
}

// compare gives the ids that were committed and never consumed, and what was consumed and never committed.
func (l *ledger) compare() (missing, invented []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, o := range l.orders {
		switch {
		case o.state == isCommitted && o.deliveries == 0:
			missing = append(missing, id.String())
		case o.state == isRolledBack && o.deliveries > 0:
			invented = append(invented, id.String()+", which was rolled back")
		}
	}
	for _, s := range l.strangers {
		invented = append(invented, fmt.Sprintf("%q, which nobody wrote", s.id))
	}
	slices.Sort(missing) // ids of version 7: by time
	slices.Sort(invented)
	return missing, invented
}

// takeStrangers gives the strangers since the last call.
func (l *ledger) takeStrangers() []stranger {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.strangers
	l.strangers = nil
	return taken
}
