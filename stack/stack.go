// Package stack starts a throwaway PostgreSQL and a throwaway RabbitMQ for the demo, the tests and the benchmarks: the
// real servers from this machine's packages, on free loopback ports, with everything they write under one temporary
// folder.
//
// Contract: several stacks live beside each other and beside servers on the standard ports. Close leaves no process
// and no file. Neither server reads the machine's own configuration or the caller's PG* and RABBITMQ_* variables.
// Under root they run as the packages' accounts, postgres and rabbitmq, else as the caller.
//
// Limits: if the caller is killed with SIGKILL, Linux ends the servers (PR_SET_PDEATHSIG), but the folder stays and,
// on other systems, so do the servers. Not built for Windows. There are no passwords to protect: PostgreSQL trusts
// every local user, RabbitMQ has its guest account.
package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Options says what to start; the zero value starts both servers with the durability that production has.
type Options struct {
	NoPostgres bool
	NoRabbitMQ bool
	Volatile   bool      // PostgreSQL runs with fsync off: quicker, and survives all but a crash of the machine
	Log        io.Writer // gets a line per server started; nil: silence
}

// Stack is a set of running servers. Its methods may be called from any goroutine.
type Stack struct {
	Dir         string // everything the servers write; their logs are Dir/*.log
	DatabaseURL string // superuser on the database postgres; empty with NoPostgres
	AMQPURL     string // administrator on the vhost "/"; empty with NoRabbitMQ

	Postgres *Server // nil with NoPostgres
	RabbitMQ *Server // nil with NoRabbitMQ

	epmd  *Server // Erlang's name server: this broker's own, so that none is shared or left behind
	close func() error
}

// Start returns when both servers accept connections: about six seconds, nearly all of it RabbitMQ's boot. When ctx
// ends first, or a server fails, nothing is left running. A failed server's error carries the end of its log; missing
// server programs are an error that says what to install.
func Start(ctx context.Context, o Options) (*Stack, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	dir, err := os.MkdirTemp("", "outbox-stack-")
	if err != nil {
		return nil, fmt.Errorf("creating the servers' temporary folder: %w", err)
	}
	s := &Stack{Dir: dir}
	s.close = sync.OnceValue(s.remove)

	// The servers' own accounts must get through to their sub-folders, which stay closed to others.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // see above
		return nil, errors.Join(err, s.Close())
	}
	g, both := errgroup.WithContext(ctx)
	if !o.NoPostgres {
		g.Go(func() error { return s.startPostgres(both, o) })
	}
	if !o.NoRabbitMQ {
		g.Go(func() error { return s.startRabbitMQ(both, o) })
	}
	if err := g.Wait(); err != nil {
		if errors.Is(ctx.Err(), context.Canceled) { // the caller knows why, the logs don't
			err = fmt.Errorf("starting the servers: %w", ctx.Err())
		}
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close kills the servers, since nobody wants their data any more, and removes the folder. A second call does nothing.
func (s *Stack) Close() error { return s.close() }

func (s *Stack) remove() error {
	var failed []error
	for _, server := range []*Server{s.RabbitMQ, s.epmd, s.Postgres} {
		if server != nil {
			failed = append(failed, server.Kill())
		}
	}
	removeSharedMemory(filepath.Join(s.Dir, "postgres"))
	if err := os.RemoveAll(s.Dir); err != nil {
		failed = append(failed, fmt.Errorf("removing the servers' temporary folder: %w", err))
	}
	return errors.Join(failed...)
}
