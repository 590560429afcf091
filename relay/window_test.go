package relay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/scanner"
)

func flightOf(sizes ...int) *flight {
	f := &flight{claim: scanner.Claim{ID: uuid.New()}, renewed: time.Now()}
	for _, size := range sizes {
		f.claim.Events = append(f.claim.Events, event.Event{ID: uuid.New(), Payload: make([]byte, size)})
	}
	return f
}

func TestWindowBoundsEventsAndBytes(t *testing.T) {
	w := newWindow(5, 1000)
	room := func(want scanner.Limit) {
		t.Helper()
		if got, ok := w.room(t.Context(), 3); !ok || got != want {
			t.Errorf("room for %+v, %t; want %+v", got, ok, want)
		}
	}
	room(scanner.Limit{Events: 3, Bytes: 1000})
	one, two := flightOf(100, 100, 100), flightOf(600)
	w.enter(one)
	room(scanner.Limit{Events: 2, Bytes: 700})
	w.enter(two)
	room(scanner.Limit{Events: 1, Bytes: 100})
	w.leave(one)
	room(scanner.Limit{Events: 3, Bytes: 400})
	w.leave(two)
	if w.inFlight() != 0 {
		t.Errorf("%d in flight at the end", w.inFlight())
	}
}

func TestFullWindowBlocks(t *testing.T) {
	for name, full := range map[string]*flight{
		"of events":              flightOf(0, 0, 0, 0, 0),
		"of bytes":               flightOf(1000),
		"of more than its bytes": flightOf(5000),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWindow(5, 1000)
				w.enter(full)
				got := make(chan bool, 1)
				go func() {
					_, ok := w.room(t.Context(), 3)
					got <- ok
				}()
				synctest.Wait()
				select {
				case <-got:
					t.Fatal("there is room")
				default:
				}
				w.leave(full)
				if !<-got {
					t.Error("no room after it has left")
				}
				w.enter(full)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					_, ok := w.room(ctx, 3)
					got <- ok
				}()
				synctest.Wait()
				cancel()
				if <-got {
					t.Error("room at the end of the context")
				}
			})
		})
	}
}

func TestOverdueListsEachLeaseOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(10, 1000)
		old := flightOf(1, 1)
		w.enter(old)
		time.Sleep(time.Minute)
		w.enter(flightOf(1))
		held := w.overdue(time.Minute)
		if len(held) != 2 || held[0].ClaimID != old.claim.ID || held[0].ID != old.claim.Events[0].ID {
			t.Errorf("overdue: %+v", held)
		}
		if again := w.overdue(time.Minute); len(again) != 0 {
			t.Errorf("overdue again at once: %+v", again)
		}
		time.Sleep(time.Minute)
		if later := w.overdue(time.Minute); len(later) != 3 {
			t.Errorf("overdue a minute later: %d", len(later))
		}
	})
}
