package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outbox-relay/outbox-relay/event"
)

const (
	firstDelay   = 100 * time.Millisecond
	outageDelay  = 4 * time.Second  // at most, and a fifth more: full speed within 5 s of a broker's return
	refusalDelay = 15 * time.Second // at most, and a fifth more: a broker that waits for an operator to mend something
	healthySpell = 10 * time.Second // a session of this age begins the delays anew
	remindEvery  = time.Minute
)

// errRefused is the cause of a session's end when the broker refuses the configured exchange.
var errRefused = errors.New("RabbitMQ refuses the configured exchange")

// Run keeps a connection until ctx ends, and then closes it and returns nil; it does not end otherwise. ctx must outlive
// the Awaits whose confirms are still wanted.
func (p *Publisher) Run(ctx context.Context) error {
	var delays backoff
	down, reminded := time.Now(), time.Time{}
	for ctx.Err() == nil {
		s, err := p.connect(ctx)
		if err == nil {
			began := time.Now()
			err = p.serve(ctx, s)
			if time.Since(began) > healthySpell && !p.refused.Load() || isSoft(err) {
				delays = 0
			}
			down, reminded = time.Now(), time.Time{}
		} else {
			p.set(nil, State{Reason: err.Error()})
			if ctx.Err() == nil && time.Since(reminded) >= remindEvery {
				reminded = time.Now()
				p.opts.Logger.Error("no connection to RabbitMQ, trying on", "error", err, "down", time.Since(down).Round(time.Second))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(delays.next(err)):
		}
	}
	return nil
}

// connect tries the endpoints in turn, beginning with the one that worked last.
func (p *Publisher) connect(ctx context.Context) (*session, error) {
	return p.dialAny(ctx, p.opts.MaxInFlight, p.checkExchange, p.noteBlocked)
}

func (p *Publisher) dialAny(
	ctx context.Context, room int, prepare func(*session) error, onBlocked func(*session, amqp.Blocking),
) (*session, error) {
	var failed error
	for range p.endpoints {
		n := p.endpoint.Load()
		at := p.endpoints[n]
		s, err := p.opts.openSession(ctx, at, room, prepare, onBlocked)
		if err == nil {
			return s, nil
		}
		err = fmt.Errorf("connecting to RabbitMQ at %s: %w", at.shown, err)
		if failed != nil {
			err = fmt.Errorf("%w; %w", failed, err)
		}
		failed = err
		if ctx.Err() != nil {
			break
		}
		p.endpoint.Store((n + 1) % int64(len(p.endpoints)))
	}
	return nil, failed
}

// checkExchange declares the configured exchange, or checks that it is there.
func (p *Publisher) checkExchange(s *session) error {
	o := &p.opts
	const durable, autoDelete, internal, noWait = true, false, false, false
	var err error
	switch {
	case o.Exchange == "":
	case o.ExchangeType == "":
		err = s.ch.ExchangeDeclarePassive(o.Exchange, amqp.ExchangeTopic, durable, autoDelete, internal, noWait, nil)
	default:
		err = s.ch.ExchangeDeclare(o.Exchange, o.ExchangeType, durable, autoDelete, internal, noWait, nil)
	}
	if err != nil {
		return o.explainExchange(err, s.at.uri.Vhost)
	}
	return nil
}

// serve stays with a session until it is lost, and returns why.
func (p *Publisher) serve(ctx context.Context, s *session) error {
	level := slog.LevelInfo
	if p.refused.Load() {
		level = slog.LevelDebug // no news: every try looks so
	}
	p.opts.Logger.Log(ctx, level, "connected to RabbitMQ", "url", s.at.shown, "exchange", p.opts.Exchange)
	p.set(s, State{Connected: true})
	select {
	case <-ctx.Done():
		s.end(errStopping)
	case <-s.lost:
	}
	p.set(nil, State{Reason: words(s.cause)})
	if ctx.Err() == nil {
		level = slog.LevelWarn
		if p.refused.Load() {
			level = slog.LevelDebug
		}
		p.opts.Logger.Log(ctx, level, "lost the connection to RabbitMQ", "url", s.at.shown, "error", words(s.cause))
	}
	s.close()
	return s.cause
}

func (p *Publisher) set(s *session, state State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current.Store(s)
	p.setState(state)
}

func (p *Publisher) setState(state State) {
	p.state = state
	switch open := state.Connected && !state.Blocked; {
	case open && !p.open:
		p.open = true
		close(p.ready)
	case p.open && !open:
		p.open = false
		p.ready = make(chan struct{})
	}
}

// noteBlocked is called by a session's goroutine.
func (p *Publisher) noteBlocked(s *session, b amqp.Blocking) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current.Load() != s || p.state.Blocked == b.Active {
		return
	}
	p.setState(State{Connected: true, Blocked: b.Active, Reason: b.Reason})
	if b.Active {
		p.opts.Logger.Warn("RabbitMQ blocks publishers, waiting", "reason", b.Reason)
	} else {
		p.opts.Logger.Info("RabbitMQ takes messages again")
	}
}

// refuse makes the publisher not ready for a while: the broker refuses the configured exchange, which shows only when
// something is published. Called by the goroutine that takes outcomes.
func (p *Publisher) refuse(err error) {
	if !p.refused.Swap(true) {
		p.opts.Logger.Error("RabbitMQ refuses the configured exchange, trying on", "error", err)
	}
	if s := p.current.Load(); s != nil {
		s.end(fmt.Errorf("%w: %w", errRefused, err))
	}
}

func (p *Publisher) noteAccepted(outcomes []event.Outcome) {
	for _, o := range outcomes {
		if o.Verdict == event.Acked && p.refused.Swap(false) {
			p.opts.Logger.Info("RabbitMQ takes messages for the configured exchange again")
		}
	}
}

// backoff is the last delay.
type backoff time.Duration

// next doubles the delay up to a limit that depends on what went wrong, and adds up to a fifth by chance, so that the
// relays of a broker do not come back all at once.
func (b *backoff) next(err error) time.Duration {
	limit := outageDelay
	if e, ok := errors.AsType[*amqp.Error](err); ok && (e.Recover || e.Code == amqp.NotAllowed || e.Code == amqp.AccessRefused) {
		limit = refusalDelay
	}
	*b = backoff(min(max(2*time.Duration(*b), firstDelay), limit))
	return time.Duration(*b) + rand.N(time.Duration(*b)/5)
}
