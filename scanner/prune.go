package scanner

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// prunePages is how much of the table one step of pruning reads: 4 MiB, some thousands of events.
const prunePages = 512

// pruning is a walk through the table's pages, over and over.
type pruning struct{ page, pages int64 }

// Prune takes one step through the table and deletes what was published before the retention. It returns how many it
// deleted, and when to take the next step so that a whole round takes about a twentieth of the retention, a minute at
// least and an hour at most. For one goroutine.
func (s *Scanner) Prune(ctx context.Context) (deleted int64, next time.Duration, err error) {
	if s.o.Retention == 0 {
		return 0, time.Hour, nil
	}
	round := min(max(s.o.Retention/20, time.Minute), time.Hour)
	p := &s.prune
	if p.page >= p.pages {
		table := pgx.Identifier{s.o.Schema, "events"}.Sanitize()
		const size = "select pg_relation_size($1::regclass) / current_setting('block_size')::int"
		if err := s.pool.QueryRow(ctx, size, table).Scan(&p.pages); err != nil {
			return 0, round, fmt.Errorf("reading the size of the table: %w", err)
		}
		p.page = 0
	}
	first, end := p.page, p.page+prunePages
	deleted, err = s.exec(ctx, s.sql.Prune, tid(first), tid(end), s.o.Retention.Seconds())
	if err != nil {
		return 0, round, fmt.Errorf("pruning published events: %w", err)
	}
	p.page = end
	steps := max((p.pages+prunePages-1)/prunePages, 1)
	return deleted, max(round/time.Duration(steps), 50*time.Millisecond), nil
}

func tid(page int64) string { return fmt.Sprintf("(%d,0)", page) }
