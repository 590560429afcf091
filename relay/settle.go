package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/failpoint"
)

const (
	// settleTimeout bounds one statement: longer means that the connection is dead.
	settleTimeout = 15 * time.Second
	// settleTogether is how many events at most are settled in one statement.
	settleTogether = 2000
)

// confirm awaits the outcomes of each flight in the order they were sent.
func (r *Relay) confirm(ctx context.Context, sent <-chan *flight, confirmed chan<- *flight) {
	for f := range sent {
		f.outcomes, f.confirmed = f.await(ctx), time.Now()
		failpoint.Here("confirmed")
		confirmed <- f
	}
}

// settle writes outcomes back until confirmed is closed: in one statement all that is there, so that a slow database gets
// fewer and larger ones. It returns the number of events that could not be settled before ctx ended.
func (r *Relay) settle(ctx context.Context, confirmed <-chan *flight) (unsettled int) {
	trouble := newTrouble(r.o.Logger.With("while", "settling"))
	for f := range confirmed {
		flights := []*flight{f}
		events := len(f.claim.Events)
		for more := true; more && events < settleTogether; {
			select {
			case next, ok := <-confirmed:
				if more = ok; ok {
					flights = append(flights, next)
					events += len(next.claim.Events)
				}
			default:
				more = false
			}
		}
		if !r.settleAll(ctx, flights, trouble) {
			unsettled += events
		}
		for _, f := range flights {
			r.window.leave(f)
		}
		r.o.Metrics.InFlight.Set(float64(r.window.inFlight()))
	}
	return unsettled
}

// settleAll tries until it has succeeded; false: ctx ended first.
func (r *Relay) settleAll(ctx context.Context, flights []*flight, trouble *dbTrouble) bool {
	var settlements []event.Settlement
	comesBack := false
	for _, f := range flights {
		for i := range f.claim.Events {
			s := r.o.Policy.settlement(f.claim.ID, &f.claim.Events[i], f.outcomes[i])
			comesBack = comesBack || s.Status == event.Failed || s.Status == event.Pending
			settlements = append(settlements, s)
		}
	}
	for {
		statement, cancel := context.WithTimeout(ctx, settleTimeout)
		lost, err := r.ledger.Settle(statement, settlements)
		cancel()
		if err == nil {
			failpoint.Here("settled")
			trouble.over()
			r.settled(flights, settlements, lost)
			break
		}
		if !trouble.met(ctx, err) {
			r.o.Logger.Error("events not settled before the grace ended: they are sent again when their lease ends",
				"events", len(settlements), "error", err)
			return false
		}
	}
	if comesBack {
		select {
		case r.poke <- struct{}{}:
		default:
		}
		r.ringOthers(ctx) // who may be the only ones left when it is due
	}
	return true
}

// settled counts and logs what was written back.
func (r *Relay) settled(flights []*flight, settlements []event.Settlement, lost int) {
	m := r.o.Metrics
	if lost > 0 {
		m.LeaseLost.Add(float64(lost))
		r.o.Logger.Warn("lease lost: another relay has taken these events and may have sent them too",
			"events", lost, "claim_id", flights[0].claim.ID)
	}
	i, handedBack := 0, 0
	for _, f := range flights {
		for j := range f.claim.Events {
			e, o, s := &f.claim.Events[j], f.outcomes[j], &settlements[i]
			i++
			switch s.Status {
			case event.Published:
				m.Published.Inc()
				m.DeliveryLag.Observe(e.LagAt(f.confirmed).Seconds())
			case event.Pending:
				handedBack++
				m.PublishFailures.WithLabelValues(o.Verdict.String()).Inc()
			case event.Failed:
				m.PublishFailures.WithLabelValues(o.Verdict.String()).Inc()
				r.logEvent(slog.LevelWarn, "event failed, will be retried", e, f, o, "retry_in", s.Delay.Round(time.Millisecond))
			case event.Dead:
				m.PublishFailures.WithLabelValues(o.Verdict.String()).Inc()
				m.Dead.WithLabelValues(o.Verdict.String()).Inc()
				r.logEvent(slog.LevelError, "event is DEAD, will not be retried", e, f, o)
			}
		}
		r.o.Logger.Debug("settled", "claim_id", f.claim.ID, "events", len(f.claim.Events), "wake", f.reason)
	}
	if handedBack > 0 {
		r.o.Logger.Info("events handed back, no attempt spent", "events", handedBack)
	}
}

func (r *Relay) logEvent(level slog.Level, message string, e *event.Event, f *flight, o event.Outcome, more ...any) {
	r.o.Logger.Log(context.Background(), level, message, append([]any{
		"event_id", e.ID, "event_type", e.Type, "aggregate_id", e.AggregateID, "attempt", e.Attempt,
		"wake", f.reason, "lag", e.LagAt(f.confirmed).Round(time.Microsecond), "claim_id", f.claim.ID,
		"outcome", o.Verdict.String(), "error", o.Reason,
	}, more...)...)
}
