package relay

import (
	"context"
	"sync"
	"time"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/scanner"
)

// flight is one claim on its way: sent, then confirmed, then settled.
type flight struct {
	claim     scanner.Claim
	reason    Reason
	await     Await
	outcomes  []event.Outcome
	confirmed time.Time // when the outcomes were there
	renewed   time.Time // when its lease last began
}

// window bounds what is in flight, in events and in bytes of payload.
type window struct {
	maxEvents int
	maxBytes  int64

	mu      sync.Mutex
	events  int
	bytes   int64
	flights map[*flight]struct{}
	freed   chan struct{} // has a value after something left
}

func newWindow(events int, bytes int64) *window {
	return &window{maxEvents: events, maxBytes: bytes, flights: map[*flight]struct{}{}, freed: make(chan struct{}, 1)}
}

// room waits until there is room and returns how much, at most batch events; false: ctx has ended.
func (w *window) room(ctx context.Context, batch int) (scanner.Limit, bool) {
	var limit scanner.Limit
	ok := w.wait(ctx, func() bool {
		limit = scanner.Limit{Events: min(batch, w.maxEvents-w.events), Bytes: w.maxBytes - w.bytes}
		return limit.Events > 0 && limit.Bytes > 0
	})
	return limit, ok
}

// empty waits until nothing is in flight; false: ctx has ended.
func (w *window) empty(ctx context.Context) bool {
	return w.wait(ctx, func() bool { return w.events == 0 })
}

func (w *window) wait(ctx context.Context, until func() bool) bool {
	for ctx.Err() == nil {
		w.mu.Lock()
		ok := until()
		w.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-w.freed:
		case <-ctx.Done():
		}
	}
	return false
}

func (w *window) enter(f *flight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flights[f] = struct{}{}
	w.events += len(f.claim.Events)
	w.bytes += size(f)
}

func (w *window) leave(f *flight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flights, f)
	w.events -= len(f.claim.Events)
	w.bytes -= size(f)
	select {
	case w.freed <- struct{}{}:
	default:
	}
}

func (w *window) inFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events
}

// overdue lists the events of flights whose lease began longer ago than age, and notes that it begins anew.
func (w *window) overdue(age time.Duration) []scanner.Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	var held []scanner.Held
	now := time.Now()
	for f := range w.flights {
		if now.Sub(f.renewed) < age {
			continue
		}
		f.renewed = now
		for i := range f.claim.Events {
			held = append(held, scanner.Held{ID: f.claim.Events[i].ID, ClaimID: f.claim.ID})
		}
	}
	return held
}

func size(f *flight) (bytes int64) {
	for i := range f.claim.Events {
		bytes += int64(len(f.claim.Events[i].Payload))
	}
	return bytes
}
