package publisher

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
)

// sendApart finds out which event the broker closed the session for: the events without a confirm are sent again one by
// one, on sessions of their own, so that the guilty one is alone when the broker closes. Some may arrive twice.
func (p *Publisher) sendApart(ctx context.Context, b *batch, open []int) {
	a := &apart{p: p, mapper: newMapper(p.opts.Exchange, p.route), refused: map[string]event.Outcome{}}
	for _, i := range open {
		b.outcomes[i] = a.send(ctx, b.events[i:i+1])
	}
	if a.session != nil {
		a.session.close()
	}
}

type apart struct {
	p       *Publisher
	mapper  *mapper
	session *session                 // nil: to be opened
	refused map[string]event.Outcome // by exchange, when it is not the event that is refused
	failed  error                    // no more is tried
}

func (a *apart) send(ctx context.Context, one []event.Event) event.Outcome {
	e := &one[0]
	exchange, _, _ := a.mapper.destination(e) // it had none the first time, if there is an error
	if outcome, ok := a.refused[exchange]; ok {
		return outcome
	}
	if ctx.Err() != nil {
		a.failed = errStopping
	}
	if a.session == nil && a.failed == nil {
		a.session, a.failed = a.p.dialAny(ctx, 1,
			func(*session) error { return nil }, func(*session, amqp.Blocking) {})
	}
	if a.failed != nil {
		return unknown(a.failed)
	}
	b := &batch{
		session: a.session, mapper: a.mapper, events: one,
		outcomes: make([]event.Outcome, 1), confirms: make([]*amqp.DeferredConfirmation, 1),
	}
	b.send(ctx, 1)
	a.session.inFlight.Add(b.sent)
	open, cause := b.settle(ctx, a.p.opts.ConfirmTimeout)
	switch {
	case b.outcomes[0].Verdict == event.Unsent && len(open) == 0:
		a.failed = errors.New(b.outcomes[0].Reason)
	case len(open) == 0:
		return b.outcomes[0]
	case isOfEvent(cause):
		outcome := a.blame(e, cause)
		a.session.close()
		a.session = nil
		return outcome
	default:
		a.failed = cause
	}
	return unknown(a.failed)
}

// blame says what the broker's close means for the event that alone was sent. A refusal of its exchange holds for all
// events of that exchange; if it is the configured one, it is not the event's fault.
func (a *apart) blame(e *event.Event, cause error) event.Outcome {
	refusal, _ := errors.AsType[*amqp.Error](cause)
	exchange, _, _ := a.mapper.destination(e)
	verdict, why := event.Refused, "RabbitMQ refuses it for "
	ofExchange := false
	switch refusal.Code {
	case amqp.NotFound:
		ofExchange, why = true, "there is no such exchange: "
	case amqp.AccessRefused:
		ofExchange, why = !isTopicRefusal(refusal), "no permission to publish to "
	case amqp.PreconditionFailed, amqp.FrameError, amqp.SyntaxError, amqp.UnexpectedFrame:
		verdict, why = event.Impossible, "RabbitMQ can't take it for "
	}
	outcome := event.Outcome{
		Verdict: verdict,
		Reason:  fmt.Sprintf("%s%s in vhost %q (%s)", why, a.mapper.describe(e), a.session.at.uri.Vhost, words(cause)),
	}
	if ofExchange && exchange == a.p.opts.Exchange {
		outcome.Verdict = event.Unknown
		if refusal.Code == amqp.AccessRefused {
			a.p.refuse(a.p.opts.explainExchange(cause, a.session.at.uri.Vhost))
		}
	}
	if ofExchange {
		a.refused[exchange] = outcome
	}
	return outcome
}
