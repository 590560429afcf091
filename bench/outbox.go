package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// outbox is outbox-relay itself.
type outbox struct {
	flags []string // of run, besides those that the place asks for
}

func (outbox) name() string { return "outbox-relay" }

func (outbox) prepare(ctx context.Context, p *place) error {
	cmd := exec.CommandContext(ctx, p.bench.relay, "migrate", "--database-url="+p.databaseURL)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("outbox-relay migrate: %w\n%s", err, out)
	}
	return nil
}

const insertEvent = `insert into outbox.events (aggregate_type, aggregate_id, event_type, payload)
	values ('order', 'order-42', 'order.created', $1)`

func (outbox) insert(ctx context.Context, tx pgx.Tx, payload []byte) error {
	_, err := tx.Exec(ctx, insertEvent, payload)
	return err
}

func (outbox) fill(ctx context.Context, p *place, from, n int) error {
	return inChunks(from, n, func(from, to int) error {
		_, err := p.db.Exec(ctx, `insert into outbox.events (aggregate_type, aggregate_id, event_type, payload)
			select 'order', 'order-' || i % 1000, 'order.created', `+payloadSQL+`::json from generate_series($1::int, $2::int) i`,
			from, to, payloadSize)
		return err
	})
}

// inChunks calls insert for stretches of from to from+n-1, as if many transactions had left them.
func inChunks(from, n int, insert func(from, to int) error) error {
	const chunk = 5000
	for i := from; i < from+n; i += chunk {
		if err := insert(i, min(i+chunk, from+n)-1); err != nil {
			return fmt.Errorf("filling the table: %w", err)
		}
	}
	return nil
}

func (o outbox) start(ctx context.Context, p *place) (running, error) { return o.run(ctx, p) }

// relayProcess is `outbox-relay run`.
type relayProcess struct {
	pid  int
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
	log  string        // file
}

// run starts the relay. The end of this program, however it comes, ends it too: PR_SET_PDEATHSIG (prctl(2)), which tells
// of the end of the thread that forked, hence the locked one.
func (o outbox) run(ctx context.Context, p *place) (*relayProcess, error) {
	log, err := os.CreateTemp(p.bench.dir, "relay-*.log")
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	args := []string{
		"run", "--database-url=" + p.databaseURL, "--amqp-url=" + p.amqpURL, "--exchange=" + p.name, "--http-addr=",
		"--log-format=text",
	}
	args = append(append(args, o.flags...), p.bench.relayFlags...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.bench.relay, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	r := &relayProcess{done: make(chan struct{}), log: log.Name()}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(r.done)
		err := cmd.Start()
		if err == nil {
			r.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			r.err = cmd.Wait()
		}
	}()
	return r, <-started
}

// stop ends the relay in order and waits for it. It is an error when it had ended before, or does not end well.
func (r *relayProcess) stop() error {
	const grace = 30 * time.Second
	select {
	case <-r.done:
		return fmt.Errorf("outbox-relay run ended by itself: %w\n%s", r.err, r.text())
	default:
	}
	_ = syscall.Kill(r.pid, syscall.SIGTERM)
	select {
	case <-r.done:
	case <-time.After(grace):
		_ = syscall.Kill(r.pid, syscall.SIGKILL)
		<-r.done
	}
	if r.err != nil {
		return fmt.Errorf("outbox-relay run, after SIGTERM: %w\n%s", r.err, r.text())
	}
	return os.Remove(r.log)
}

func (r *relayProcess) text() string {
	const limit = 4000
	text, err := os.ReadFile(filepath.Clean(r.log))
	if err != nil {
		return err.Error()
	}
	return string(text[max(len(text)-limit, 0):])
}
