package relay

import (
	"context"
	"time"

	"github.com/outbox-relay/outbox-relay/failpoint"
	"github.com/outbox-relay/outbox-relay/scanner"
)

const (
	// claimTimeout bounds one claim: longer means that the connection is dead.
	claimTimeout = 15 * time.Second
	// ringInterval is how often at most a relay with more work than it can do wakes the others.
	ringInterval = 100 * time.Millisecond
	// ringTimeout bounds that: it is a courtesy.
	ringTimeout = time.Second
	// missedGrace is how long after a scan a notification may still come for what the scan found.
	missedGrace = time.Second
	// dueRetry is the wait before due events that could not be had are tried again.
	dueRetry = 100 * time.Millisecond
)

// pump looks, claims and sends until ctx ends. A claim under way is finished: what ctx keeps from being sent is handed back.
func (r *Relay) pump(ctx, finishing context.Context, sent chan<- *flight) {
	reason := Start
	var rang time.Time
	trouble := newTrouble(r.o.Logger)
	trouble.told = &r.database
	var missed missedBell
	for {
		if !r.brokerReady(ctx) {
			return
		}
		limit, ok := r.window.room(ctx, r.o.BatchSize)
		if !ok {
			return
		}
		now := time.Now()
		fromBottom := r.pace.scanDue(now)
		claim, look, err := r.claim(finishing, fromBottom, limit)
		if err != nil {
			if !trouble.met(ctx, err) {
				return
			}
			reason = Reconnect
			continue
		}
		trouble.over()
		r.pace.looked(now, fromBottom, claim, look)
		r.send(ctx, claim, reason, sent)
		if _, asleep := r.bell.Asleep(); asleep && reason == Scan && fromBottom {
			missed.found(len(claim.Events))
		}
		if look.NextAt != nil && *look.NextAt <= 0 {
			r.sendDue(ctx, finishing, sent)
		}
		if r.pace.busy && claim.Cut && now.Sub(rang) > ringInterval {
			rang = now
			r.ringOthers(finishing)
		}
		if reason, ok = r.rest(ctx, reason, claim, look, &missed); !ok {
			return
		}
	}
}

// brokerReady waits until events can be published. Meanwhile nothing is claimed and nobody has to ring.
func (r *Relay) brokerReady(ctx context.Context) bool {
	ready := r.sink.Ready()
	select {
	case <-ready:
		return ctx.Err() == nil
	default:
	}
	r.bell.Rest(false)
	defer r.pace.setBusy(true)
	select {
	case <-ready:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (r *Relay) claim(ctx context.Context, fromBottom bool, limit scanner.Limit) (scanner.Claim, scanner.Look, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	defer r.o.Metrics.claimed(time.Now())
	rung := r.pace.rung
	r.pace.rung = false
	if rung && !fromBottom {
		return r.source.ClaimRung(ctx, limit)
	}
	return r.source.ClaimFresh(ctx, fromBottom, limit)
}

// send publishes a claim's events; ctx's end leaves the rest of them unsent, to be handed back.
func (r *Relay) send(ctx context.Context, claim scanner.Claim, reason Reason, sent chan<- *flight) {
	if len(claim.Events) == 0 {
		return
	}
	r.o.Metrics.EventsClaimed.WithLabelValues(string(reason)).Add(float64(len(claim.Events)))
	r.o.Logger.Debug("claimed", "claim_id", claim.ID, "events", len(claim.Events), "wake", reason)
	f := &flight{claim: claim, reason: reason, renewed: time.Now()}
	r.window.enter(f)
	r.o.Metrics.InFlight.Set(float64(r.window.inFlight()))
	failpoint.Here("claimed")
	f.await = r.sink.Publish(ctx, claim.Events)
	failpoint.Here("sent")
	sent <- f // has room for as many flights as the window has for events
}

// sendDue claims and sends what is due. Suspects go one at a time, with nothing else in flight.
func (r *Relay) sendDue(ctx, finishing context.Context, sent chan<- *flight) {
	n, err := r.claimDue(ctx, finishing, false, sent)
	if err == nil && n == 0 {
		r.expireLeases(finishing) // what is due and can't be claimed may be held by the dead
		if !r.window.empty(ctx) {
			return
		}
		if n, err = r.claimDue(ctx, finishing, true, sent); n > 0 && !r.window.empty(ctx) {
			return
		}
	}
	switch {
	case err != nil:
		r.o.Logger.Warn("due events not claimed", "error", err)
		r.pace.nextDue = time.Now().Add(dueRetry)
	case n == 0:
		r.pace.nextDue = time.Now().Add(dueRetry)
	default:
		r.pace.nextDue = time.Now() // there may be more
	}
}

func (r *Relay) claimDue(ctx, finishing context.Context, suspects bool, sent chan<- *flight) (int, error) {
	limit, ok := r.window.room(ctx, r.o.BatchSize)
	if !ok {
		return 0, nil
	}
	claiming, cancel := context.WithTimeout(finishing, claimTimeout)
	defer cancel()
	claim, err := r.source.ClaimDue(claiming, suspects, limit)
	if err != nil {
		return 0, err
	}
	r.send(ctx, claim, Due, sent)
	return len(claim.Events), nil
}

// ringOthers wakes the other relays: no trigger tells them of what comes back to the table.
func (r *Relay) ringOthers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ringTimeout)
	defer cancel()
	if err := r.bell.Ring(ctx); err != nil {
		r.o.Logger.Debug("other relays not rung", "error", err)
	}
}

// rest waits for the next reason to look. A look that follows without sleep keeps its reason.
func (r *Relay) rest(ctx context.Context, reason Reason, claim scanner.Claim, look scanner.Look, missed *missedBell) (Reason, bool) {
	wait, sleep := r.pace.wait(time.Now(), claim, look)
	if wait == 0 && ctx.Err() == nil {
		return r.timeUp(reason, false, sleep), true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return reason, false
		case <-r.bell.Rung():
			missed.rung()
			r.pace.rung = sleep
			return r.wake(Notify), true
		case <-r.bell.Reconnected():
			return r.wake(Reconnect), true
		case <-r.bell.Changed():
			r.pace.woken()
			return reason, true
		case <-r.poke:
			return r.wake(Due), true
		case <-missed.expired():
			r.missed(missed.count())
		case <-timer.C:
			return r.timeUp(reason, true, sleep), true
		}
	}
}

// timeUp names the reason for a look that the clock asks for.
func (r *Relay) timeUp(reason Reason, waited, slept bool) Reason {
	now := time.Now()
	switch {
	case !waited || !slept:
		return reason
	case !r.pace.nextDue.IsZero() && !now.Before(r.pace.nextDue):
		return r.wake(Due)
	default:
		return r.wake(Scan)
	}
}

func (r *Relay) wake(reason Reason) Reason {
	r.pace.woken()
	r.o.Metrics.Wakeups.WithLabelValues(string(reason)).Inc()
	return reason
}

func (r *Relay) missed(n int) {
	r.o.Metrics.MissedNotifications.Add(float64(n))
	r.o.Logger.Warn("the scan found events that no notification told of: is the trigger events_doorbell there and enabled?", "events", n)
}
