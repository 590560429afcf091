package scanner

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outbox-relay/outbox-relay/event"
)

// Settle writes back what became of claimed events, of one claim or several, in one statement (two when published events
// are not kept). It returns how many were no longer held by their claim and so were left as they are: their lease was lost.
// It may be repeated after an error.
func (s *Scanner) Settle(ctx context.Context, settlements []event.Settlement) (lost int, err error) {
	if s.o.Retention > 0 {
		settled, err := s.exec(ctx, s.sql.Settle, columns(settlements)...)
		if err != nil {
			return 0, fmt.Errorf("settling %d events: %w", len(settlements), err)
		}
		return len(settlements) - int(settled), nil
	}
	var published, others []event.Settlement
	for _, o := range settlements {
		if o.Status == event.Published {
			published = append(published, o)
		} else {
			others = append(others, o)
		}
	}
	var settled int64
	if len(published) > 0 {
		n, err := s.exec(ctx, s.sql.SettleByDelete, columns(published)[:2]...)
		if err != nil {
			return 0, fmt.Errorf("deleting %d published events: %w", len(published), err)
		}
		settled += n
	}
	if len(others) > 0 {
		n, err := s.exec(ctx, s.sql.Settle, columns(others)...)
		if err != nil {
			return 0, fmt.Errorf("settling %d events: %w", len(others), err)
		}
		settled += n
	}
	return len(settlements) - int(settled), nil
}

// columns turns settlements into the arrays that the statement unnests.
func columns(settlements []event.Settlement) []any {
	n := len(settlements)
	ids, claims, statuses := make(uuids, n), make(uuids, n), make([]string, n)
	delays, refunds, errs := make([]float64, n), make([]int32, n), make([]*string, n)
	for i := range settlements {
		o := &settlements[i]
		ids[i], claims[i] = pgUUID(o.ID), pgUUID(o.ClaimID)
		statuses[i], delays[i] = string(o.Status), o.Delay.Seconds()
		if o.Refund {
			refunds[i] = 1
		}
		if o.Error != "" {
			errs[i] = &o.Error
		}
	}
	return []any{ids, claims, statuses, delays, refunds, errs}
}

// uuids is a form of []uuid.UUID that pgx encodes without reflection: a ninth of the relay's time under load went there.
type uuids = pgtype.FlatArray[pgtype.UUID]

func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// Held names an event and the claim that holds it.
type Held struct{ ID, ClaimID uuid.UUID }

// RenewLeases gives events that are still being worked on a new lease.
func (s *Scanner) RenewLeases(ctx context.Context, held []Held) error {
	ids, claims := make(uuids, len(held)), make(uuids, len(held))
	for i, h := range held {
		ids[i], claims[i] = pgUUID(h.ID), pgUUID(h.ClaimID)
	}
	if _, err := s.exec(ctx, s.sql.RenewLeases, ids, claims, s.o.Lease.Seconds()); err != nil {
		return fmt.Errorf("renewing the leases of %d events: %w", len(held), err)
	}
	return nil
}

// Expired is an event taken from a claim whose lease had ended.
type Expired struct {
	ID          uuid.UUID
	Type        string
	AggregateID string
	Attempts    int
	Status      event.Status // FAILED (due at once) or DEAD
}

// ExpireLeases takes up to 1,000 events from claims whose lease has ended.
func (s *Scanner) ExpireLeases(ctx context.Context) ([]Expired, error) {
	var expired []Expired
	err := s.query(ctx, s.sql.ExpireLeases, []any{s.o.MaxAttempts, s.reached.Load(), 1000}, func(rows pgx.Rows) (err error) {
		expired, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Expired, err error) {
			err = row.Scan((*[16]byte)(&e.ID), &e.Type, &e.AggregateID, &e.Attempts, &e.Status)
			return e, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for expired leases: %w", err)
	}
	return expired, nil
}
