package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// sums is what a run gave.
type sums struct {
	committed, rolledBack, inDoubt             int
	delivered, relayRepeats, brokerRepeats     int
	lost, invented, misapplied                 int
	retried, mostAttempts, retriedWithoutCause int
	drained                                    time.Duration
}

// reconcile lets all that was committed drain, ends the relays, and holds what writers did against what consumers, the
// database and the broker say.
func (w *world) reconcile(ctx context.Context) (s sums, err error) {
	began := time.Now()
	conn, err := pgx.Connect(ctx, w.servers.DatabaseURL)
	if err != nil {
		return s, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()

	drained := func() bool {
		var unfinished, effects int
		err = conn.QueryRow(ctx, `select (select count(*) from outbox.events where status not in ('PUBLISHED', 'DEAD')),
			(select count(distinct number) from chaos.effects)`).Scan(&unfinished, &effects)
		return err != nil || w.ledger.unreceived() == 0 && unfinished == 0 && effects >= w.committed()
	}
	if !eventually(ctx, recoveryLimit, drained) && ctx.Err() == nil {
		w.found("the outbox is not drained %s after the last fault", recoveryLimit)
	}
	if err != nil || ctx.Err() != nil {
		return s, fmt.Errorf("waiting for the outbox to drain: %w", err)
	}
	s.drained = time.Since(began)
	w.note("drained")
	w.checkRelays(ctx, conn)
	if err := w.crew.stop(); err != nil {
		w.found("%v", err)
	}
	w.checkStops()
	w.checkProcesses()
	w.checkLogs()
	if err := w.checkTable(ctx, conn); err != nil {
		return s, err
	}
	effects, err := readEffects(ctx, conn)
	if err != nil {
		return s, err
	}
	wrong := w.compare(&s, effects)
	for _, n := range wrong[:min(len(wrong), evidenceLimit)] {
		w.evidence(ctx, conn, n, w.ledger.events[n])
	}
	return s, nil
}

func (w *world) committed() (n int) {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	for i := range w.ledger.events {
		if w.ledger.events[i].state == isCommitted {
			n++
		}
	}
	return n
}

// readEffects counts them by number.
func readEffects(ctx context.Context, conn *pgx.Conn) (map[int]int, error) {
	rows, err := conn.Query(ctx, "select number, count(*) from chaos.effects group by number")
	if err != nil {
		return nil, fmt.Errorf("reading the effects: %w", err)
	}
	effects := map[int]int{}
	var number, n int
	_, err = pgx.ForEachRow(rows, []any{&number, &n}, func() error {
		effects[number] = n
		return nil
	})
	return effects, err
}

// compare goes through all numbers, and gives those that were lost or invented.
func (w *world) compare(s *sums, effects map[int]int) (wrong []int) {
	l := w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	s.delivered, s.brokerRepeats = l.received, l.redelivered
	for n := 1; n < len(l.events); n++ {
		e := &l.events[n]
		s.relayRepeats += e.repeats
		s.mostAttempts = max(s.mostAttempts, e.attempt)
		want := 0
		switch e.state {
		case isCommitted:
			s.committed++
			want = 1
		case isRolledBack:
			s.rolledBack++
		default:
			s.inDoubt++
			w.found("number %d is in doubt", n)
		}
		switch {
		case want == 1 && e.deliveries == 0:
			s.lost++
			wrong = append(wrong, n)
			w.found("LOST: number %d; %s", n, e.story())
		case want == 0 && e.deliveries > 0:
			s.invented++
			wrong = append(wrong, n)
			w.found("INVENTED: number %d was rolled back; %s", n, e.story())
		case effects[n] != want:
			s.misapplied++
			w.found("number %d, %s, has had %d effects", n, e.state, effects[n])
		}
		if e.attempt > 1 {
			s.retried++
			if !w.hadCause(e) {
				s.retriedWithoutCause++
				w.found("number %d needed attempt %d, and no fault explains it; %s", n, e.attempt, e.story())
			}
		}
	}
	for n, ids := range l.changed {
		w.found("number %d came with several ids: %v", n, ids)
	}
	for _, what := range l.strangers {
		s.invented++
		w.found("INVENTED: %s", what)
	}
	return wrong
}

// hadCause tells whether a fault that may leave claims without an outcome struck while the event was on its way.
func (w *world) hadCause(e *entry) bool {
	for _, ep := range w.episodes {
		if ep.spends && !ep.from.After(e.last) && !ep.to.Add(3*lease).Before(e.sent) {
			return true
		}
	}
	return false
}

// checkTable wants every event PUBLISHED, and notes those that are not.
func (w *world) checkTable(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "select row_to_json(e)::text from (select id, sequence, aggregate_id as number, status, attempts, "+
		"lease_expiries, created_at, available_at, claim_id, claim_expires_at, last_error, now() from outbox.events "+
		"where status <> 'PUBLISHED' order by sequence limit 20) e")
	if err != nil {
		return fmt.Errorf("reading the outbox: %w", err)
	}
	var event string
	_, err = pgx.ForEachRow(rows, []any{&event}, func() error {
		w.found("not PUBLISHED: %s", event)
		return nil
	})
	return err
}

// checkRelays wants living relays to hold no more goroutines and connections than young ones.
func (w *world) checkRelays(ctx context.Context, conn *pgx.Conn) {
	relays := len(w.crew.sailing(true))
	most := max(4, runtime.NumCPU()) + 1 // pgx's pool and the listener
	var sessions string
	quiet := eventually(ctx, settleLimit, func() bool {
		var names, largest int
		err := conn.QueryRow(ctx, `select count(*), max(n), string_agg(application_name || ' ' || n, ', ') from (
			select application_name, count(*) as n from pg_stat_activity
			where starts_with(application_name, 'outbox-relay') group by 1) s`).Scan(&names, &largest, &sessions)
		return err == nil && names == relays && largest <= most
	})
	if !quiet {
		w.found("%d relays should have at most %d sessions each, but there are: %s", relays, most, sessions)
	}
	var connections string
	quiet = eventually(ctx, settleLimit, func() (ok bool) {
		list, err := w.servers.Rabbitmqctl(ctx, "--quiet", "list_connections", "client_properties")
		connections = list
		return err == nil && strings.Count(list, "connection_name\",\"outbox-relay ") == relays
	})
	if !quiet {
		w.found("%d relays should have a connection to the broker each, but there are:\n%s", relays, connections)
	}
	for _, b := range w.crew.sailing(true) {
		goroutines, err := b.relay.metric("go_goroutines")
		if err != nil {
			w.found("%v", err)
		}
		if inFlight, _ := b.relay.metric("outbox_in_flight_events"); inFlight != 0 {
			w.found("%s says that %v events are in flight", b.relay.name, inFlight)
		}
		if goroutines > w.baseline+10 { // a connection more or less
			w.found("%s has %v goroutines, a new one %v", b.relay.name, goroutines, w.baseline)
		}
	}
}

// checkStops forgives an unclean end only where the database could not be told of outcomes.
func (w *world) checkStops() {
	for _, s := range w.stops {
		excused := false
		for _, ep := range w.episodes {
			excused = excused || ep.database && !ep.from.After(s.to) && !ep.to.Before(s.from)
		}
		if !excused {
			w.found("%v", s.err)
		}
	}
}

func (w *world) checkProcesses() {
	for _, p := range w.crew.processes {
		select {
		case <-p.done:
		default:
			w.found("%s is still there, process %d", p.name, p.cmd.Process.Pid)
		}
	}
}

// checkLogs looks for what must never be in one.
func (w *world) checkLogs() {
	logs, _ := filepath.Glob(filepath.Join(w.dir, "relay-*.log"))
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			w.found("%v", err)
		}
		for _, bad := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: ", "guest:guest"} {
			if strings.Contains(string(text), bad) {
				w.found("%s contains %q", log, bad)
			}
		}
	}
}
