package scanner

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-relay/outbox-relay/event"
)

// Limit bounds one claim: at most so many events, and so many bytes of payload, though one event always fits.
type Limit struct {
	Events int
	Bytes  int64
}

// Claim is a set of events that belong to this relay until their lease ends.
type Claim struct {
	ID     uuid.UUID
	Events []event.Event // by sequence
	Cut    bool          // there may be more: a limit cut it short
}

// Look is what a claim of fresh events learned beside its events.
type Look struct {
	Xmin   uint64         // all transactions below this had ended
	NextAt *time.Duration // until the next retry or scheduled event is due; not positive: due now; nil: there is none
}

// Few is how many events ClaimRung takes with its quicker statement.
const Few = 2

// nearby is how far back from the frontier, in events, ClaimRung still walks with its quicker statement.
const nearby = 1000

// ClaimRung is ClaimFresh for a relay that slept and was rung: a statement that is quicker, but takes only a Few, comes
// first, and the other only if that finds none.
func (s *Scanner) ClaimRung(ctx context.Context, limit Limit) (Claim, Look, error) {
	s.restartOnNewConnection()
	start := s.frontier.lowest()
	if limit.Events < Few || start < s.frontier.next-nearby {
		return s.ClaimFresh(ctx, false, limit)
	}
	claim := Claim{ID: uuid.New()}
	var text string
	var begun int64
	var due *float64
	err := s.query(ctx, s.sql.ClaimNext, []any{claim.ID, s.o.Lease.Seconds(), start}, func(rows pgx.Rows) (err error) {
		claim.Events, err = collectEvents(rows, []any{&text, &begun, &due})
		return err
	})
	switch {
	case err != nil:
		s.frontier = newFrontier()
		return Claim{}, Look{}, fmt.Errorf("claiming events: %w", err)
	case len(claim.Events) == 0:
		return s.ClaimFresh(ctx, false, limit)
	}
	claim.Cut = len(claim.Events) == Few
	look, err := s.looked(&claim, text, begun, nil, due)
	return claim, look, err
}

// ClaimFresh claims events that have not been claimed before, in order of their sequence from the frontier upward; with
// fromBottom, from the lowest. An error leaves nothing to hand back, unless the answer was lost on its way: then the lease
// ends it.
func (s *Scanner) ClaimFresh(ctx context.Context, fromBottom bool, limit Limit) (Claim, Look, error) {
	s.restartOnNewConnection()
	start := s.frontier.next
	if fromBottom {
		start = 0
	}
	xids, positions := s.frontier.obligations()
	claim := Claim{ID: uuid.New()}
	var text string
	var begun int64
	var last *int64
	var reach int
	var due *float64
	err := s.query(ctx, s.sql.ClaimFresh,
		[]any{claim.ID, s.o.Lease.Seconds(), limit.Events, limit.Bytes, start, xids, positions},
		func(rows pgx.Rows) (err error) {
			claim.Events, err = collect(rows, []any{&text, &begun, &last, &reach, &due})
			return err
		})
	if err != nil {
		s.frontier = newFrontier()
		return Claim{}, Look{}, fmt.Errorf("claiming events: %w", err)
	}
	claim.Cut = reach == limit.Events || len(claim.Events) < reach
	look, err := s.looked(&claim, text, begun, last, due)
	return claim, look, err
}

// restartOnNewConnection: it may lead to another server, that has not received everything.
func (s *Scanner) restartOnNewConnection() {
	if g := s.fresh.Load(); g != s.generation {
		s.frontier, s.generation = newFrontier(), g
	}
}

// looked takes in what came with a claim of fresh events.
func (s *Scanner) looked(claim *Claim, text string, begun int64, last *int64, due *float64) (Look, error) {
	snapshot, err := parseSnapshot(text)
	if err != nil {
		return Look{}, err
	}
	var highest, lastValue int64
	if n := len(claim.Events); n > 0 {
		highest = claim.Events[n-1].Sequence
	}
	if last != nil {
		lastValue = *last
	}
	if last != nil && lastValue < s.frontier.last { // it was set back, by a restart of the sequence or of history
		s.frontier = newFrontier()
	}
	s.frontier.advance(snapshot, begun, lastValue, highest, claim.Cut)
	s.reached.Store(s.frontier.next)
	look := Look{Xmin: snapshot.xmin}
	if due != nil {
		d := seconds(*due)
		look.NextAt = &d
	}
	return look, nil
}

// ClaimDue claims events whose time has come. Suspects are those whose lease has expired, twice or before their last
// attempt; they are claimed one at a time, and only when asked for.
func (s *Scanner) ClaimDue(ctx context.Context, suspects bool, limit Limit) (Claim, error) {
	if suspects {
		limit.Events = 1
	}
	claim := Claim{ID: uuid.New()}
	var reach int
	err := s.query(ctx, s.sql.ClaimDue,
		[]any{claim.ID, s.o.Lease.Seconds(), limit.Events, limit.Bytes, s.o.MaxAttempts, suspects},
		func(rows pgx.Rows) (err error) {
			claim.Events, err = collect(rows, []any{&reach})
			return err
		})
	if err != nil {
		return Claim{}, fmt.Errorf("claiming due events: %w", err)
	}
	claim.Cut = reach == limit.Events || len(claim.Events) < reach
	return claim, nil
}

// collect reads a claim's answer: a first row with the look, then a row for each event.
func collect(rows pgx.Rows, look []any) ([]event.Event, error) {
	skip := make([]any, len(look))
	for range 13 { // the event's columns
		look = append(look, nil)
	}
	if !rows.Next() {
		return nil, rows.Err()
	}
	if err := rows.Scan(look...); err != nil {
		return nil, err
	}
	return collectEvents(rows, skip)
}

// collectEvents reads a row for each event, whose first columns go to targets.
func collectEvents(rows pgx.Rows, targets []any) ([]event.Event, error) {
	var events []event.Event
	var contentType string
	var now time.Time
	var e event.Event
	var age float64
	var itsType *string
	targets = append(targets, (*[16]byte)(&e.ID), &e.Sequence, &e.CreatedAt, &age, &e.Attempt, &e.AggregateType,
		&e.AggregateID, &e.Type, &e.RoutingKey, &e.Exchange, &itsType, &e.Headers, &e.Payload)
	for rows.Next() {
		if events == nil { // what follows is known from the first row on
			contentType, now = defaultContentType(rows), time.Now()
		}
		e, itsType = event.Event{}, nil
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		e.ClaimedAt, e.AgeAtClaim, e.ContentType = now, seconds(age), contentType
		if itsType != nil {
			e.ContentType = *itsType
		}
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b event.Event) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return events, rows.Err()
}

// defaultContentType follows from the type of the payload's column, the last one.
func defaultContentType(rows pgx.Rows) string {
	columns := rows.FieldDescriptions()
	switch columns[len(columns)-1].DataTypeOID {
	case pgtype.JSONOID, pgtype.JSONBOID:
		return "application/json"
	case pgtype.TextOID, pgtype.VarcharOID:
		return "text/plain; charset=utf-8"
	default:
		return "application/octet-stream"
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
