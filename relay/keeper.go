package relay

import (
	"context"
	"time"

	"github.com/outbox-relay/outbox-relay/event"
)

// keep renews the leases of what is in flight until keeping ends; and until ctx ends, takes over what the dead held, and
// prunes.
func (r *Relay) keep(ctx, keeping context.Context) {
	lease := time.NewTicker(max(r.o.Lease/4, 10*time.Millisecond))
	defer lease.Stop()
	prune := time.NewTimer(time.Second)
	defer prune.Stop()
	for {
		select {
		case <-keeping.Done():
			return
		case <-lease.C:
			r.renewLeases(keeping)
			if ctx.Err() == nil {
				r.expireLeases(keeping)
			}
		case <-prune.C:
			if ctx.Err() == nil {
				prune.Reset(r.prune(keeping))
			}
		}
	}
}

// renewLeases also finds out whether a database that was away is back.
func (r *Relay) renewLeases(ctx context.Context) {
	held := r.window.overdue(r.o.Lease / 8) // less than a tick ago, so that one tick after another renews
	if len(held) == 0 && !r.watch.absent() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Lease/4)
	defer cancel()
	switch err := r.house.RenewLeases(ctx, held); {
	case err == nil:
		r.watch.noteAnswer()
	case len(held) > 0:
		r.o.Logger.Warn("leases not renewed", "events", len(held), "error", err)
	}
}

// expireLeases is called by the keeper and the pump.
func (r *Relay) expireLeases(ctx context.Context) {
	if !r.watch.othersHadTime() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(r.o.Lease/4, settleTimeout)) // the next renewal waits for it
	defer cancel()
	expired, err := r.house.ExpireLeases(ctx)
	if err != nil {
		r.o.Logger.Debug("expired leases not looked for", "error", err)
		return
	}
	r.watch.noteAnswer()
	if len(expired) == 0 {
		return
	}
	for _, e := range expired {
		if e.Status != event.Dead {
			continue
		}
		r.o.Metrics.Dead.WithLabelValues("lease_expired").Inc()
		r.o.Logger.Error("event is DEAD, will not be retried", "event_id", e.ID, "event_type", e.Type,
			"aggregate_id", e.AggregateID, "attempt", e.Attempts, "error", "its relay died or was stopped at every attempt")
	}
	r.o.Logger.Warn("took over events whose lease had expired: their relay died or was stopped", "events", len(expired))
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// prune takes one step and says when to take the next.
func (r *Relay) prune(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	deleted, next, err := r.house.Prune(ctx)
	if err != nil {
		r.o.Logger.Warn("published events not pruned", "error", err)
	}
	if deleted > 0 {
		r.o.Logger.Debug("pruned", "events", deleted)
	}
	return next
}
