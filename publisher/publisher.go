// Package publisher sends events to RabbitMQ and says what became of each. It knows nothing of where events come from.
//
// Contract:
//
//   - Acked means: the broker confirmed the message, and it was routed to a queue at least. All else has another verdict.
//   - Only an event's own fault is charged to it (Nacked, Returned, Refused, Impossible). A lost connection, an alarm, a
//     missing configured exchange or a slow broker is Unsent or Unknown.
//   - Run keeps one connection, over all failures. It blames an event, not its neighbours, for a channel that the broker
//     closes: events without a confirm are sent again one by one then. So a message may be sent twice, with the same id.
//   - Publish never waits for a confirm, and while the broker blocks publishers (connection.blocked) it sends nothing.
//
// Limits: order is kept only within what one Publish sends without failures. What is sent and not yet taken by the
// socket is kept in memory: about a mebibyte, or one message if that is more.
//
// Goroutines: Run's own, and two for each session (a connection and its channel) beside the client's two. There is one
// session at a time, and a second one while events are sent one by one.
package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
)

// Options configure a Publisher.
type Options struct {
	URLs []string // amqp:// or amqps://, tried in turn

	// TLS, for amqps. What is empty here is taken from the URL's parameters cacertfile, certfile and keyfile; without a
	// CA the system's are trusted.
	CAFile, CertFile, KeyFile string

	Exchange       string // "": AMQP's default exchange, where the routing key is a queue's name
	ExchangeType   string // declared durable with this type; "": it must exist
	RoutingKey     string // Go template with EventType, AggregateType, AggregateID, ID, Sequence; "": {{.EventType}}
	ConfirmTimeout time.Duration
	MaxInFlight    int // events whose outcomes are not taken; what exceeds it is Unsent
	Instance       string
	Logger         *slog.Logger
}

// Publisher is to be made by New. Run, Publish and the Awaits each belong to one goroutine; the rest may be called from
// anywhere.
type Publisher struct {
	opts      Options
	endpoints []endpoint
	route     route
	mapper    *mapper // Publish's

	current  atomic.Pointer[session]
	endpoint atomic.Int64 // index of the one that worked last
	refused  atomic.Bool  // the broker refuses the configured exchange; until a confirm comes

	mu    sync.Mutex
	state State
	open  bool // connected and not blocked
	ready chan struct{}
}

// State is for readiness and metrics.
type State struct {
	Connected, Blocked bool
	Reason             string // why not connected, or why blocked, in the broker's words
}

// Await waits for the outcomes of what one Publish sent, parallel to its events. The end of ctx makes Unknown what has
// no confirm by then. Call it once for each Publish, in the order of sending, from one goroutine.
type Await = func(ctx context.Context) []event.Outcome

// New checks the options, and names the field of a wrong one. It starts nothing.
func New(o Options) (*Publisher, error) {
	p := &Publisher{opts: o, ready: make(chan struct{})}
	p.state.Reason = "not connected yet"
	errs := []error{o.validate()}
	for i, raw := range o.URLs {
		at, err := parseEndpoint(raw)
		if err == nil && at.uri.Scheme == "amqps" {
			_, err = o.tlsConfig(at.uri)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("URLs: number %d: %w", i+1, err))
		}
		p.endpoints = append(p.endpoints, at)
	}
	var err error
	if p.route, err = compileRoute(o.RoutingKey); err != nil {
		errs = append(errs, fmt.Errorf("RoutingKey: %w", err))
	}
	p.mapper = newMapper(o.Exchange, p.route)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

func (o *Options) validate() error {
	var errs []error
	if len(o.URLs) == 0 {
		errs = append(errs, errors.New("URLs: there must be one at least"))
	}
	if err := checkShort("the name", o.Exchange); err != nil {
		errs = append(errs, fmt.Errorf("Exchange: %w", err))
	}
	if err := checkShort("the type", o.ExchangeType); err != nil {
		errs = append(errs, fmt.Errorf("ExchangeType: %w", err))
	}
	if o.ConfirmTimeout <= 0 {
		errs = append(errs, errors.New("ConfirmTimeout: must be above 0"))
	}
	if o.MaxInFlight <= 0 {
		errs = append(errs, errors.New("MaxInFlight: must be above 0"))
	}
	if o.Logger == nil {
		errs = append(errs, errors.New("Logger: is missing"))
	}
	return errors.Join(errs...)
}

// State may be called from any goroutine.
func (p *Publisher) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// Ready gives a channel that is closed, or will be, when the broker is connected and not blocking.
func (p *Publisher) Ready() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// Publish sends the events and returns without waiting for confirms. It stops early when ctx ends, the connection is
// lost or the broker blocks; what is left then is Unsent. The events must stay as they are until Await has returned.
func (p *Publisher) Publish(ctx context.Context, events []event.Event) Await {
	s := p.current.Load()
	if s == nil {
		outcomes := unsent(events, "not connected to RabbitMQ: "+p.State().Reason)
		return func(context.Context) []event.Outcome { return outcomes }
	}
	b := &batch{
		session: s, mapper: p.mapper, events: events,
		outcomes: make([]event.Outcome, len(events)),
		confirms: make([]*amqp.DeferredConfirmation, len(events)),
	}
	b.send(ctx, int64(p.opts.MaxInFlight)-s.inFlight.Load())
	s.inFlight.Add(b.sent)
	return func(ctx context.Context) []event.Outcome { return p.await(ctx, b) }
}

func (p *Publisher) await(ctx context.Context, b *batch) []event.Outcome {
	open, cause := b.settle(ctx, p.opts.ConfirmTimeout)
	switch {
	case len(open) == 0:
	case isOfEvent(cause):
		p.sendApart(ctx, b, open)
	default:
		for _, i := range open {
			b.outcomes[i] = unknown(cause)
		}
	}
	if p.refused.Load() {
		p.noteAccepted(b.outcomes)
	}
	return b.outcomes
}
