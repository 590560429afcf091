package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/outbox-relay/outbox-relay/stack"
)

// The relays' settings: leases and timeouts so short that faults outlast them.
const (
	lease       = 5 * time.Second
	grace       = 5 * time.Second
	stopTimeout = grace + 5*time.Second // on a busy machine
)

var settings = []string{
	"OUTBOX_LEASE=" + lease.String(), "OUTBOX_CONFIRM_TIMEOUT=3s", "OUTBOX_SCAN_INTERVAL=2s", "OUTBOX_GRACE=" + grace.String(),
	"OUTBOX_BATCH_SIZE=100", "OUTBOX_LOG_LEVEL=debug", "OUTBOX_LOG_FORMAT=json",
}

// berth is a place for a relay, with proxies of its own to both servers. Only one fault at a time, and nobody else, starts
// and ends relays.
type berth struct {
	number   int
	httpAddr string
	postgres *proxy
	rabbitmq *proxy
	relay    *relay // nil: there is none
	starts   int
}

// crew is the relays and those that were.
type crew struct {
	program   string
	dir       string // of their logs
	settings  []string
	berths    []*berth
	died      func(*relay)
	processes []*relay // all that ever were
}

func newCrew(program, dir string, servers *stack.Stack, size int, died func(*relay), more ...string) (*crew, error) {
	c := &crew{program: program, dir: dir, settings: append(more, settings...), died: died}
	for i := range size {
		b := &berth{number: i + 1}
		port, err := stack.FreePort()
		if err == nil {
			b.postgres, err = newProxy(servers.DatabaseURL)
		}
		if err == nil {
			b.rabbitmq, err = newProxy(servers.AMQPURL)
		}
		if err != nil {
			return nil, fmt.Errorf("preparing relay %d: %w", b.number, err)
		}
		b.httpAddr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		c.berths = append(c.berths, b)
	}
	return c, nil
}

// start puts a new relay into a berth. By lot it is told to take its database URL for a pooler's.
func (c *crew) start(b *berth, r *rand.Rand) error {
	b.starts++
	env := append([]string{"DATABASE_URL=" + b.postgres.url, "AMQP_URL=" + b.rabbitmq.url}, c.settings...)
	if r.IntN(4) == 0 {
		env = append(env, "OUTBOX_LISTEN_URL="+b.postgres.url)
	}
	started, err := startRelay(c.program, c.dir, fmt.Sprintf("relay-%d.%d", b.number, b.starts), b.httpAddr, env, c.died)
	if err != nil {
		return err
	}
	b.relay = started
	c.processes = append(c.processes, started)
	return nil
}

// sailing gives the berths that have a relay, or those that have none.
func (c *crew) sailing(is bool) []*berth {
	var found []*berth
	for _, b := range c.berths {
		if (b.relay != nil) == is {
			found = append(found, b)
		}
	}
	return found
}

// awaitReady waits until every relay can publish and hears.
func (c *crew) awaitReady(ctx context.Context, limit time.Duration) error {
	for _, b := range c.sailing(true) {
		if !eventually(ctx, limit, b.relay.ready) {
			return fmt.Errorf("%s is not ready after %s", b.relay.name, limit)
		}
	}
	return nil
}

// stop ends all relays in order.
func (c *crew) stop() error {
	var failed []error
	for _, b := range c.sailing(true) {
		failed = append(failed, b.relay.stop(stopTimeout))
		b.relay = nil
	}
	return errors.Join(failed...)
}

// close leaves nothing.
func (c *crew) close() {
	for _, p := range c.processes {
		p.kill()
	}
	for _, b := range c.berths {
		b.postgres.close()
		b.rabbitmq.close()
	}
}

// eventually polls until the condition holds; false: it did not in time.
func eventually(ctx context.Context, limit time.Duration, holds func() bool) bool {
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) || !pause(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return true
}

// pause is false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
