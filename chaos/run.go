package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/stack"
)

type options struct {
	seed     uint64
	duration time.Duration // of the faults; starting and reconciling come on top
	relays   int           // at once, at most
	quorum   bool
	only     string // faults whose kind contains it
	keep     bool   // the logs, also if all is well
	verbose  bool
	out      io.Writer
}

const (
	writers     = 4
	consumers   = 2
	readyLimit  = 30 * time.Second
	settleLimit = 30 * time.Second // for the end to be seen in the database and the broker
)

// world is a run: the servers, who works on them, and what was noted.
type world struct {
	o        options
	dir      string // logs, kept if something is wrong
	servers  *stack.Stack
	crew     *crew
	ledger   *ledger
	began    time.Time
	timeline io.Writer
	baseline float64 // goroutines of a relay that was just ready, at most

	mu       sync.Mutex
	episodes []episode
	stops    []badStop
	findings []string // what should not be
}

// badStop is a relay that did not end well when it was asked to.
type badStop struct {
	from, to time.Time
	err      error
}

// run is the whole program. It returns an error if a promise was broken, or the harness could not do its work.
func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "outbox-chaos-")
	if err != nil {
		return fmt.Errorf("creating a folder for logs: %w", err)
	}
	timeline, err := os.Create(filepath.Join(dir, "timeline.log"))
	if err != nil {
		return err
	}
	defer func() { _ = timeline.Close() }()
	w := &world{o: o, dir: dir, ledger: newLedger(), began: time.Now(), timeline: timeline}
	if o.verbose {
		w.timeline = io.MultiWriter(timeline, o.out)
	}
	defer func() {
		switch {
		case o.keep && err == nil:
			fmt.Fprintln(o.out, "logs in", dir)
		case err == nil || ctx.Err() != nil:
			_ = os.RemoveAll(dir)
		default:
			err = fmt.Errorf("%w\nseed %d, logs in %s", err, o.seed, dir)
		}
	}()
	program := filepath.Join(dir, "outbox-relay")
	if err := build(ctx, program); err != nil {
		return err
	}
	if w.servers, err = stack.Start(ctx, stack.Options{Volatile: true}); err != nil {
		return err
	}
	defer func() {
		if err != nil || o.keep {
			w.keepServersLogs()
		}
		err = errors.Join(err, w.servers.Close())
	}()
	return w.live(ctx, program)
}

// build makes the relay, with the race detector where this program has it.
func build(ctx context.Context, program string) error {
	args := []string{"build", "-o", program}
	if race {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(ctx, "go", append(args, "github.com/outbox-relay/outbox-relay")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the relay: %w\n%s", err, out)
	}
	return nil
}

// live lets all work, be hurt, and recover; and reconciles.
func (w *world) live(ctx context.Context, program string) (err error) {
	where := place{databaseURL: w.servers.DatabaseURL, amqpURL: w.servers.AMQPURL, quorum: w.o.quorum}
	if err := w.prepare(ctx, program, where); err != nil {
		return err
	}
	retention := max(w.o.duration/2, 3*recoveryLimit) // pruning takes part, and leaves what is missed time to be looked into
	w.crew, err = newCrew(program, w.dir, w.servers, w.o.relays, w.diedByItself, "OUTBOX_RETENTION="+retention.String())
	if err != nil {
		return err
	}
	defer w.crew.close()
	draw := rand.New(rand.NewPCG(w.o.seed, 1))
	for _, b := range w.crew.berths[:min(3, w.o.relays)] {
		if err := w.crew.start(b, draw); err != nil {
			return err
		}
	}
	if err := w.crew.awaitReady(ctx, readyLimit); err != nil {
		return err
	}
	for _, b := range w.crew.sailing(true) {
		n, err := b.relay.metric("go_goroutines")
		if err != nil {
			return err
		}
		w.baseline = max(w.baseline, n)
	}

	var working, consuming sync.WaitGroup
	defer consuming.Wait()
	consumerCtx, stopConsumers := context.WithCancel(ctx)
	defer stopConsumers()
	for i := range consumers {
		c := &consumer{place: where, ledger: w.ledger, random: rand.New(rand.NewPCG(w.o.seed, uint64(10+i)))}
		consuming.Go(func() { c.run(consumerCtx) })
	}
	writerCtx, stopWriters := context.WithCancel(ctx)
	defer stopWriters()
	failed := make([]error, writers)
	for i := range writers {
		wr := &writer{place: where, ledger: w.ledger, random: rand.New(rand.NewPCG(w.o.seed, uint64(20+i)))}
		working.Go(func() { failed[i] = wr.run(writerCtx) })
	}
	attacked := w.attack(ctx, w.o.seed, w.o.duration)
	w.note("faults are over")
	stopWriters()
	working.Wait()
	if err := errors.Join(append(failed, ctx.Err())...); err != nil {
		return err
	}
	if attacked != nil {
		w.found("%v", attacked)
	}
	sums, err := w.reconcile(ctx)
	if err != nil {
		return errors.Join(attacked, err)
	}
	w.report(sums)
	if len(w.findings) > 0 {
		return fmt.Errorf("%d things are not as promised", len(w.findings))
	}
	return nil
}

// prepare makes the outbox, the application's tables, and the queue.
func (w *world) prepare(ctx context.Context, program string, where place) error {
	migrate := exec.CommandContext(ctx, program, "migrate")
	migrate.Env = []string{"DATABASE_URL=" + where.databaseURL}
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("outbox-relay migrate: %w\n%s", err, out)
	}
	conn, err := pgx.Connect(ctx, where.databaseURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, schema)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("making the application's tables: %w", err)
	}
	if err := where.declare(); err != nil {
		return fmt.Errorf("binding the queue: %w", err)
	}
	return nil
}

// note writes a line of the timeline.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintf(w.timeline, "%s %8.3f %s\n", time.Now().Format("15:04:05.000"), time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// found says what should not be.
func (w *world) found(format string, args ...any) {
	w.note("NOT AS PROMISED: "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findings = append(w.findings, fmt.Sprintf(format, args...))
}

func (w *world) record(e episode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.episodes = append(w.episodes, e)
}

func (w *world) unclean(from time.Time, err error) {
	w.note("%v", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops = append(w.stops, badStop{from: from, to: time.Now(), err: err})
}

func (w *world) diedByItself(r *relay) { w.found("%s ended by itself, %s", r.name, r.cmd.ProcessState) }

// keepServersLogs moves them out of the servers' folder, which goes.
func (w *world) keepServersLogs() {
	logs, _ := filepath.Glob(filepath.Join(w.servers.Dir, "*.log"))
	for _, log := range logs {
		_ = os.Rename(log, filepath.Join(w.dir, filepath.Base(log)))
	}
}
