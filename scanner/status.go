package scanner

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/event"
	"github.com/outbox-relay/outbox-relay/sql"
)

// Status is a picture of the outbox for people and scripts.
type Status struct {
	SchemaVersion int32                  `json:"schema_version"`
	Events        map[event.Status]int64 `json:"events"`
	// OldestPending is the age in seconds of the oldest event that could be sent now and is not PUBLISHED; null: none.
	OldestPending *float64 `json:"oldest_pending_age_seconds"`
	// NextDue is how many seconds from now the next retry or scheduled event is due, negative when it is late; null: none.
	NextDue *float64         `json:"next_due_seconds"`
	Relays  []ConnectedRelay `json:"relays"`
}

// ConnectedRelay is a relay that has sessions in this database for this schema.
type ConnectedRelay struct {
	Name     string     `json:"name"`  // host/pid
	Since    *time.Time `json:"since"` // null: only a role with pg_read_all_stats may see it
	Sessions int        `json:"sessions"`
}

// ReadStatus reads it on any connection that may SELECT from the table. It returns an *ErrSchema where there is no outbox.
func ReadStatus(ctx context.Context, db querier, schema string) (*Status, error) {
	if err := checkSchema(ctx, db, schema); err != nil {
		return nil, err
	}
	statements, err := sql.ForSchema(schema)
	if err != nil {
		return nil, err
	}
	var st Status
	err = db.QueryRow(ctx, statements.Status).Scan(&st.Events, &st.OldestPending, &st.NextDue, &st.SchemaVersion)
	if err != nil {
		return nil, fmt.Errorf("reading the outbox's status: %w", err)
	}
	rows, err := db.Query(ctx, statements.Relays, applicationPrefix(schema))
	if err != nil {
		return nil, fmt.Errorf("looking for connected relays: %w", err)
	}
	st.Relays, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ConnectedRelay])
	if err != nil {
		return nil, fmt.Errorf("looking for connected relays: %w", err)
	}
	return &st, nil
}
