package main

import (
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// ledger is what writers did and what consumers received, by the numbers of events. Any goroutine may write in it. All
// times are readings of this process's clock.
type ledger struct {
	mu           sync.Mutex
	transactions int                       // begun
	events       []entry                   // by number; the first is not used
	waiting      map[int]struct{}          // committed, and not received yet
	calm         int                       // the current stretch of time without faults; 0: there are faults
	latencies    []time.Duration           // of events committed and received in one calm stretch
	received     int                       // deliveries of known numbers
	redelivered  int                       // of these, those that the broker had handed out before
	strangers    []string                  // deliveries of what nobody wrote
	changed      map[int]map[uuid.UUID]int // numbers that came with several ids
}

type entry struct {
	state       state
	calm        int
	sent        time.Time // just before COMMIT
	due         time.Time // when COMMIT had returned, or later if it was scheduled
	first, last time.Time // deliveries
	deliveries  int
	repeats     int // deliveries that the relay sent again, not the broker
	attempt     int // the highest that was delivered
	id          uuid.UUID
}

type state uint8

const (
	inDoubt state = iota
	isCommitted
	isRolledBack
)

func (s state) String() string { return [...]string{"in doubt", "committed", "rolled back"}[s] }

func newLedger() *ledger {
	return &ledger{events: make([]entry, 1), waiting: map[int]struct{}{}, changed: map[int]map[uuid.UUID]int{}}
}

// reserve gives the first of n numbers that nobody else has.
func (l *ledger) reserve(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := len(l.events)
	l.events = append(l.events, make([]entry, n)...)
	return first
}

// transaction gives the id of a new transaction.
func (l *ledger) transaction() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.transactions++
	return l.transactions
}

// committing is called just before COMMIT is sent: messages may arrive before the answer to it. The events of a large
// transaction wait for each other at the consumer, so that nothing can be read off their latency.
func (l *ledger) committing(numbers []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range numbers {
		l.events[n].sent = time.Now()
		if len(numbers) < 50 {
			l.events[n].calm = l.calm
		}
	}
}

// committed says that COMMIT has returned; due holds the later times of scheduled events.
func (l *ledger) committed(numbers []int, due map[int]time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range numbers {
		e := &l.events[n]
		e.state, e.due = isCommitted, time.Now()
		if at, ok := due[n]; ok {
			e.calm = 0
			if at.After(e.due) {
				e.due = at
			}
		}
		if e.deliveries == 0 {
			l.waiting[n] = struct{}{}
		}
	}
}

func (l *ledger) rolledBack(numbers []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range numbers {
		l.events[n].state = isRolledBack
	}
}

// delivery is one message as a consumer received it.
type delivery struct {
	number      int
	id          uuid.UUID
	attempt     int
	redelivered bool // the broker had handed it out before
}

func (l *ledger) deliver(d delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.events[d.number]
	l.received++
	e.last = time.Now()
	e.deliveries++
	e.attempt = max(e.attempt, d.attempt)
	if d.redelivered {
		l.redelivered++
	}
	if e.deliveries == 1 {
		e.first, e.id = e.last, d.id
		delete(l.waiting, d.number)
		if e.calm != 0 && e.calm == l.calm {
			l.latencies = append(l.latencies, e.first.Sub(e.sent))
		}
		return
	}
	if !d.redelivered {
		e.repeats++
	}
	if d.id != e.id {
		if l.changed[d.number] == nil {
			l.changed[d.number] = map[uuid.UUID]int{e.id: 1}
		}
		l.changed[d.number][d.id]++
	}
}

// knows tells whether a number was ever given out.
func (l *ledger) knows(number int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return number > 0 && number < len(l.events)
}

func (l *ledger) stranger(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers = append(l.strangers, what)
}

// setCalm begins a stretch of time without faults, or ends it.
func (l *ledger) setCalm(stretch int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calm = stretch
}

// oldest is how long the event that waits longest has been due, and its number; 0: nothing waits.
func (l *ledger) oldest() (age time.Duration, number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for n := range l.waiting {
		if a := now.Sub(l.events[n].due); a > age {
			age, number = a, n
		}
	}
	return age, number
}

// unreceived is how many committed events have not been received.
func (l *ledger) unreceived() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// percentile gives the latency that so many of a hundred events were below.
func (l *ledger) percentile(p int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.latencies) == 0 {
		return 0
	}
	slices.Sort(l.latencies)
	return l.latencies[(len(l.latencies)-1)*p/100]
}
