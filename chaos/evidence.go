package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// evidenceLimit is how many events at most are looked into: each costs a walk through the table and the logs.
const evidenceLimit = 5

// story tells in a line what writers and consumers know of an event.
func (e *entry) story() string {
	at := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Format("15:04:05.000")
	}
	return fmt.Sprintf("COMMIT sent %s, due %s, delivered %d times (first %s, last %s), highest attempt %d",
		at(e.sent), at(e.due), e.deliveries, at(e.first), at(e.last), e.attempt)
}

// evidence puts into the timeline what the table, the faults and the relays' logs tell of an event.
func (w *world) evidence(ctx context.Context, conn *pgx.Conn, number int, e entry) {
	w.note("EVIDENCE for number %d: %s", number, e.story())
	for _, ep := range w.episodes {
		if !ep.to.Add(3*lease).Before(e.sent) && (e.last.IsZero() || ep.from.Before(e.last)) {
			w.note("  fault from %s to %s: %s", ep.from.Format("15:04:05.000"), ep.to.Format("15:04:05.000"), ep.name())
		}
	}
	var row, id string
	var claim *string
	err := conn.QueryRow(ctx, `select (to_jsonb(e) - 'payload')::text, id::text, claim_id::text from outbox.events e
		where aggregate_id = $1::bigint::text`, number).Scan(&row, &id, &claim)
	if err != nil {
		w.note("  in the outbox: %v", err)
		return
	}
	w.note("  in the outbox: %s", row)
	wanted := []string{id}
	if claim != nil {
		wanted = append(wanted, *claim)
	}
	logs, _ := filepath.Glob(filepath.Join(w.dir, "relay-*.log"))
	for _, log := range logs {
		w.quote(log, wanted)
	}
}

// quote puts a log's lines that hold one of the texts into the timeline.
func (w *world) quote(log string, texts []string) {
	file, err := os.Open(log)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		for _, text := range texts {
			if strings.Contains(lines.Text(), text) {
				w.note("  %s: %s", filepath.Base(log), lines.Text())
				break
			}
		}
	}
}
