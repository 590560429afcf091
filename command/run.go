package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/outbox-relay/outbox-relay/config"
	"github.com/outbox-relay/outbox-relay/listener"
	"github.com/outbox-relay/outbox-relay/publisher"
	"github.com/outbox-relay/outbox-relay/relay"
	"github.com/outbox-relay/outbox-relay/scanner"
)

// RunCommand is the relay itself.
type RunCommand struct {
	config.Settings
}

const (
	// batchesInFlight bounds what is in flight, in full batches: enough that claiming, confirming and marking overlap.
	batchesInFlight = 4
	// bytesInFlight bounds it in bytes of payload.
	bytesInFlight = 64 << 20

	// The relay's live heap is a few megabytes of short-lived events, so collecting at twice that is collecting all the time.
	// gcPercent holds while the heap is small, heapLimit (soft) keeps large events from growing with it.
	gcPercent = 400
	heapLimit = 96 << 20
)

// tuneMemory sets both, unless GOGC or GOMEMLIMIT say otherwise.
func tuneMemory(lookupEnv func(string) (string, bool)) {
	if _, set := lookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	if _, set := lookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(heapLimit)
	}
}

// Run relays until ctx ends. What is down when it starts is waited for; only a missing or older schema is an error.
func (c *RunCommand) Run(ctx context.Context, env *Env) error {
	tuneMemory(env.LookupEnv)
	log := env.Log
	instance := scanner.Instance()
	pool, err := c.databaseConfig(instance)
	if err != nil {
		return err
	}
	sc, err := scanner.New(ctx, pool, scanner.Options{
		Schema: c.Schema, Lease: c.Lease, MaxAttempts: c.MaxAttempts, Retention: c.Retention, Pooled: c.ListenURL != "",
	})
	if err != nil {
		return err
	}
	defer sc.Close()
	pub, err := publisher.New(publisher.Options{
		URLs: c.AMQPURLs, CAFile: c.AMQPCAFile, CertFile: c.AMQPCertFile, KeyFile: c.AMQPKeyFile,
		Exchange: c.Exchange, ExchangeType: c.ExchangeType, RoutingKey: c.RoutingKey,
		ConfirmTimeout: c.ConfirmTimeout, MaxInFlight: c.inFlight(), Instance: "outbox-relay " + instance,
		Logger: component(log, "publisher"),
	})
	if err != nil {
		return err
	}
	var lis *listener.Listener
	var bell relay.Bell
	if c.Wake == "notify" {
		direct, err := c.listenConfig(pool, instance)
		if err != nil {
			return err
		}
		lis = listener.New(listener.Options{
			Connect: direct.ConnConfig, Schema: c.Schema, Notify: sc.Notify, Logger: component(log, "listener"),
		})
		bell = lis
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r := relay.New(relay.Options{
		ScanInterval: c.ScanInterval, BatchSize: c.BatchSize, Lease: c.Lease, Grace: c.Grace,
		Policy: relay.Policy{
			MaxAttempts: c.MaxAttempts, BackoffBase: c.BackoffBase, BackoffMax: c.BackoffMax,
			Unroutable: relay.Unroutable(c.Unroutable),
		},
		InFlight: c.inFlight(), InFlightSize: bytesInFlight,
		Logger: component(log, "relay"), Metrics: relay.NewMetrics(registry),
	}, sc, sc, sc, pub, bell)

	// What the relay stands on outlives it: the confirms and marks of the last events need it.
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	below, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	mon := newMonitor(registry, r, pub, lis)
	if c.HTTPAddr != "" {
		socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.HTTPAddr)
		if err != nil {
			return fmt.Errorf("listening on --http-addr (OUTBOX_HTTP_ADDR) %s, which another relay may use: %w", c.HTTPAddr, err)
		}
		goroutines.Go(func() { mon.serve(below, socket, component(log, "http")) })
	}
	goroutines.Go(func() { _ = pub.Run(below) })

	log.Info("starting", "version", ThisBuild().Version, "instance", instance, "schema", c.Schema, "exchange", c.Exchange,
		"wake", c.Wake, "scan_interval", c.ScanInterval, "http", c.HTTPAddr)
	if err := awaitSchema(ctx, sc, log); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	if lis != nil {
		goroutines.Go(func() { lis.Run(below) })
	}
	mon.started.Store(true)
	err = r.Run(ctx)
	log.Info("stopped", "cause", context.Cause(ctx))
	return err
}

func component(log *slog.Logger, name string) *slog.Logger { return log.With("component", name) }

func (c *RunCommand) inFlight() int { return batchesInFlight * c.BatchSize }

func (c *RunCommand) databaseConfig(instance string) (*pgxpool.Config, error) {
	pool, err := config.ParseDatabaseURL(c.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("--database-url (DATABASE_URL): %w", err)
	}
	c.prepare(pool, instance)
	return pool, nil
}

// listenConfig is for the connection that listens: its own URL, or the database's.
func (c *RunCommand) listenConfig(pool *pgxpool.Config, instance string) (*pgxpool.Config, error) {
	if c.ListenURL == "" {
		return pool.Copy(), nil
	}
	direct, err := config.ParseDatabaseURL(c.ListenURL)
	if err != nil {
		return nil, fmt.Errorf("--listen-url (OUTBOX_LISTEN_URL): %w", err)
	}
	c.prepare(direct, instance)
	return direct, nil
}

// prepare lets connections fail soon when nobody answers, and say whose they are.
func (c *RunCommand) prepare(pool *pgxpool.Config, instance string) {
	conn := pool.ConnConfig
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = connectTimeout
	}
	conn.DialFunc = (&net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}).DialContext
	conn.RuntimeParams["application_name"] = scanner.ApplicationName(c.Schema, instance)
}

// awaitSchema waits until the database answers and holds the schema that this build wants. It returns nil when ctx ends.
func awaitSchema(ctx context.Context, sc *scanner.Scanner, log *slog.Logger) error {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval = 100*time.Millisecond, 5*time.Second
	var told time.Time
	for {
		checking, cancel := context.WithTimeout(ctx, connectTimeout)
		err := sc.CheckSchema(checking)
		cancel()
		var schema *scanner.ErrSchema
		switch {
		case err == nil:
			if !told.IsZero() {
				log.Info("database answers")
			}
			return nil
		case errors.As(err, &schema):
			return err
		case ctx.Err() != nil:
			return nil
		case time.Since(told) >= time.Minute:
			told = time.Now()
			log.Warn("waiting for the database", "error", unreachable(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delays.NextBackOff()):
		}
	}
}
