package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
)

// A batch is what one call of Publish sent, all of it on one session, and what is known of it.
type batch struct {
	session  *session
	mapper   *mapper
	events   []event.Event
	outcomes []event.Outcome
	confirms []*amqp.DeferredConfirmation // nil for an event whose outcome is known
	sent     int64
	sentAt   time.Duration // in the session's unblocked time
}

func unsent(events []event.Event, reason string) []event.Outcome {
	outcomes := make([]event.Outcome, len(events))
	for i := range outcomes {
		outcomes[i].Reason = reason
	}
	return outcomes
}

// send writes the events until one can't be written, and leaves the rest Unsent. A full backlog of a slow broker can
// hold it up, but not once ctx ends, the session is lost or the broker blocks.
func (b *batch) send(ctx context.Context, room int64) {
	defer context.AfterFunc(ctx, func() { b.session.sock.lift(true) })()
	if len(b.events) > 1 {
		b.session.sock.gathering(true)
		defer b.session.sock.gathering(false)
	}
	for i := range b.events {
		reason := b.obstacle(ctx)
		if reason == "" && b.sent == room {
			reason = "too many events are in flight"
		}
		if reason == "" {
			reason = b.sendOne(i)
		}
		if reason != "" {
			copy(b.outcomes[i:], unsent(b.events[i:], reason))
			break
		}
	}
	b.sentAt = b.session.unblockedTime()
}

// obstacle says why nothing more can be sent now.
func (b *batch) obstacle(ctx context.Context) string {
	select {
	case <-b.session.lost:
		return "the connection to RabbitMQ was lost: " + words(b.session.cause)
	case <-ctx.Done():
		return "the relay is stopping"
	default:
	}
	if b.session.blocked.Load() {
		return "RabbitMQ is blocking publishers"
	}
	return ""
}

// sendOne says why this and later events can't be sent, if so.
func (b *batch) sendOne(i int) (obstacle string) {
	exchange, key, msg, err := b.mapper.message(&b.events[i], b.session.frameMax)
	if err != nil {
		b.outcomes[i] = event.Outcome{Verdict: event.Impossible, Reason: err.Error()}
		return ""
	}
	const mandatory, immediate = true, false
	confirm, err := b.session.ch.PublishWithDeferredConfirm(exchange, key, mandatory, immediate, msg)
	if err != nil {
		// The message is not complete on the wire, if it is there at all, so the broker won't take it.
		return "the connection to RabbitMQ was lost: " + words(err)
	}
	b.confirms[i] = confirm
	b.sent++
	return ""
}

// settle waits for the confirms in the order of sending, and takes the outcomes that they bring. It returns the indices
// of the events that were sent and got no confirm, and why.
func (b *batch) settle(ctx context.Context, limit time.Duration) (open []int, cause error) {
	// The returns of open events may still come, so their room stays taken.
	defer func() { b.session.inFlight.Add(int64(len(open)) - b.sent) }()
	w := &waiter{session: b.session, deadline: b.sentAt + limit, limit: limit}
	defer w.stop()
	for i, confirm := range b.confirms {
		if confirm == nil {
			continue
		}
		if cause == nil {
			cause = w.wait(ctx, confirm)
		}
		outcome, known := b.outcome(i)
		if !known {
			open = append(open, i)
		}
		b.outcomes[i] = outcome
	}
	if len(open) > 0 && cause == nil {
		// The client resolves every confirm when the channel closes; why it did is being told.
		<-b.session.lost
		cause = b.session.cause
	}
	return open, cause
}

// outcome reads a confirm without waiting for it. ack=false is the broker's nack, or the client's word for a channel
// that is closed: a nack is charged only if it is surely one.
func (b *batch) outcome(i int) (_ event.Outcome, known bool) {
	e, confirm := &b.events[i], b.confirms[i]
	select {
	case <-confirm.Done():
	default:
		return event.Outcome{}, false
	}
	switch {
	case confirm.Acked() && !b.session.wasReturned(e.ID):
		return event.Outcome{Verdict: event.Acked}, true
	case confirm.Acked():
		return event.Outcome{Verdict: event.Returned, Reason: fmt.Sprintf(
			"no queue is bound to %s (312 NO_ROUTE)", b.mapper.describe(e))}, true
	case b.session.ch.IsClosed():
		return event.Outcome{}, false
	}
	return event.Outcome{Verdict: event.Nacked, Reason: fmt.Sprintf(
		"RabbitMQ did not take it (basic.nack): a queue bound to %s is full and rejects, or failed",
		b.mapper.describe(e))}, true
}

// A waiter waits for confirms with one timer for all.
type waiter struct {
	session  *session
	deadline time.Duration // in the session's unblocked time
	limit    time.Duration
	timer    *time.Timer
}

func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// wait returns nil when the confirm is done, acked or not. A session that gives no confirm in time is abandoned.
func (w *waiter) wait(ctx context.Context, confirm *amqp.DeferredConfirmation) error {
	select {
	case <-confirm.Done():
		return nil
	default:
	}
	if w.timer == nil {
		w.timer = time.NewTimer(w.left())
	}
	for {
		select {
		case <-confirm.Done():
			return nil
		case <-w.session.lost:
			return w.session.cause
		case <-ctx.Done():
			return errStopping
		case <-w.timer.C:
			if w.left() <= 0 && !w.session.blocked.Load() {
				w.session.abandon(fmt.Errorf("RabbitMQ gave no confirm in %s (--confirm-timeout)", w.limit))
				continue
			}
			w.timer.Reset(max(w.left(), 100*time.Millisecond))
		}
	}
}

func (w *waiter) left() time.Duration { return w.deadline - w.session.unblockedTime() }

// unknown is the reason for events that were sent and got no confirm.
func unknown(cause error) event.Outcome {
	reason := "sent, but no confirm came: " + words(cause)
	if errors.Is(cause, errStopping) {
		reason = "sent, but the relay stopped before a confirm came"
	}
	return event.Outcome{Verdict: event.Unknown, Reason: reason}
}
