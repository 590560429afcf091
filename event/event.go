// Package event holds the few types that the rooms of the relay share: an event as it was claimed from the outbox,
// what became of it at the broker, and what is to be written back. It knows neither SQL nor AMQP.
//
// State machine of an event's status:
//
//	PENDING    -> PUBLISHING   claimed; the attempt is counted here, so that an event that kills its relay still ends
//	PUBLISHING -> PUBLISHED    the broker confirmed it (final)
//	PUBLISHING -> FAILED       will be tried again at available_at
//	PUBLISHING -> PENDING      handed back without an attempt spent (outage, shutdown)
//	PUBLISHING -> DEAD         attempts used up, or it can never be sent (final until an operator redelivers it)
//	FAILED     -> PUBLISHING   claimed again
package event

import (
	"time"

	"github.com/google/uuid"
)

// Status is the value of the status column.
type Status string

// The five states of an event. FAILED is retried, DEAD is not.
const (
	Pending    Status = "PENDING"
	Publishing Status = "PUBLISHING"
	Published  Status = "PUBLISHED"
	Failed     Status = "FAILED"
	Dead       Status = "DEAD"
)

// Event is a claimed row of the outbox.
type Event struct {
	ID            uuid.UUID
	Sequence      int64
	AggregateType string
	AggregateID   string
	Type          string
	Payload       []byte  // the bytes as the table gives them
	ContentType   string  // the row's, or one that follows from the payload's column type
	Headers       []byte  // a JSON object, or nil
	RoutingKey    *string // nil: from the configured template
	Exchange      *string // nil: the configured exchange; "": AMQP's default exchange
	CreatedAt     time.Time
	Attempt       int // this attempt's number, from 1

	// ClaimedAt is a reading of this process's monotonic clock and AgeAtClaim the database's clock minus CreatedAt at
	// that moment. Together they give the lag without comparing two machines' clocks.
	ClaimedAt  time.Time
	AgeAtClaim time.Duration
}

// LagAt is the time from the event's creation to t, a reading of this process's clock.
func (e *Event) LagAt(t time.Time) time.Duration { return e.AgeAtClaim + t.Sub(e.ClaimedAt) }

// Verdict says what became of one event at the broker.
type Verdict uint8

// The verdicts. Only Nacked, Returned, Refused and Impossible are the event's own doing.
const (
	// Unsent: no byte of it can have reached the broker.
	Unsent Verdict = iota
	// Unknown: sent, and the connection was lost, blocked too long or silent before a confirm. May have arrived.
	Unknown
	// Acked: confirmed, and routed to a queue at least.
	Acked
	// Nacked: the broker took it and said no (a full queue with reject-publish, an internal error).
	Nacked
	// Returned: confirmed, but no queue is bound for its routing key. It is in no queue.
	Returned
	// Refused: the broker closed the channel or connection because of this very event (an exchange that is missing, no
	// permission). It may be accepted later, when somebody has mended that.
	Refused
	// Impossible: it can never be sent as it is (too large for the broker, a header that AMQP can't carry).
	Impossible
)

// String gives the verdict's name in lower case, as logs and metrics label it.
func (v Verdict) String() string {
	return [...]string{"unsent", "unknown", "acked", "nacked", "returned", "refused", "impossible"}[v]
}

// Outcome is what became of one event at the broker. Reason is empty for Acked; else it is a sentence for a person.
type Outcome struct {
	Verdict Verdict
	Reason  string
}

// Settlement is what is to be written back for one claimed event.
type Settlement struct {
	ID      uuid.UUID
	ClaimID uuid.UUID     // the claim that must still hold the event
	Status  Status        // Published, Failed, Pending or Dead
	Delay   time.Duration // Failed, Pending: available again this long after the database's now
	Refund  bool          // the attempt that the claim counted is given back
	Error   string        // kept in last_error; empty leaves what was there
}
