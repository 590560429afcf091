package relay

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outbox-relay/outbox-relay/event"
)

// Unroutable says what becomes of an event that no queue is bound for.
type Unroutable string

// The policies for returned events.
const (
	RetryUnroutable  Unroutable = "retry"
	DeadUnroutable   Unroutable = "dead"
	AcceptUnroutable Unroutable = "accept"
)

// Policy decides what an outcome means for an event. The whole table is in settlement.
type Policy struct {
	MaxAttempts             int
	BackoffBase, BackoffMax time.Duration
	Unroutable              Unroutable
}

// errorLimit bounds last_error, in bytes.
const errorLimit = 1000

// settlement turns one event's outcome into what is written back. Only what is the event's own doing costs an attempt.
func (p Policy) settlement(claimID uuid.UUID, e *event.Event, o event.Outcome) event.Settlement {
	s := event.Settlement{ID: e.ID, ClaimID: claimID, Error: storable(o.Reason)}
	switch o.Verdict {
	case event.Acked:
		s.Status = event.Published
	case event.Unsent, event.Unknown:
		s.Status, s.Refund = event.Pending, true
	case event.Impossible:
		s.Status = event.Dead
	case event.Returned:
		switch p.Unroutable {
		case AcceptUnroutable:
			s.Status = event.Published
		case DeadUnroutable:
			s.Status = event.Dead
		default:
			p.retry(&s, e.Attempt)
		}
	default: // Nacked, Refused
		p.retry(&s, e.Attempt)
	}
	return s
}

// storable is as much of a text as is kept, fit for PostgreSQL, which refuses invalid UTF-8 and the character zero: a text
// that it can't take would hold up the settling of everything.
func storable(text string) string {
	text = text[:min(len(text), errorLimit)]
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}

func (p Policy) retry(s *event.Settlement, attempt int) {
	if attempt >= p.MaxAttempts {
		s.Status = event.Dead
		return
	}
	s.Status, s.Delay = event.Failed, p.backoff(attempt)
}

// backoff is base·2^min(attempt-1,10), at most the maximum, jittered down by up to a quarter so that events that failed
// together do not come back together.
func (p Policy) backoff(attempt int) time.Duration {
	d := min(p.BackoffBase<<min(max(attempt-1, 0), 10), p.BackoffMax)
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}
