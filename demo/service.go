package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-relay/outbox-relay/sql"
)

// phase is a part of the shop's day.
type phase struct {
	name, text string
	share      float64       // of the demo's duration
	pause      time.Duration // of a client between two orders, on average
}

const (
	clients = 16
	// rolledBackOneIn is the share of orders that fail after both inserts.
	rolledBackOneIn = 8
	// transactionTimeout bounds one order, also when the demo is asked to stop in its middle.
	transactionTimeout = 10 * time.Second
	// cleanUpTimeout bounds what runs after the demo's own context has ended.
	cleanUpTimeout = 10 * time.Second
)

const calm, burst = "calm", "burst"

var phases = []phase{
	{calm, "about 40 orders a second. The relay sleeps between them: a COMMIT rings the doorbell and wakes it.", 0.45, 400 * time.Millisecond},
	{burst, "as fast as PostgreSQL commits. In a busy stream the relay stays awake, and nobody has to ring.", 0.22, 0},
	{calm, "the relay sleeps again, and is woken again.", 0.33, 400 * time.Millisecond},
}

// shop is the sample order service: ordinary transactions, and no word of RabbitMQ.
type shop struct {
	place                    place
	pool                     *pgxpool.Pool
	ledger                   *ledger
	insertOrder, insertEvent string
	made                     []string // schemas
}

// openShop migrates, in schemas that must not exist yet.
func openShop(ctx context.Context, p place, l *ledger) (_ *shop, err error) {
	config, err := pgxpool.ParseConfig(p.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("reading DATABASE_URL: %w", err)
	}
	config.MaxConns = clients
	config.ConnConfig.RuntimeParams["application_name"] = "outbox-relay demo, shop"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("preparing the connections to PostgreSQL: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connecting to PostgreSQL (DATABASE_URL): %w", err)
	}
	orders, events := pgx.Identifier{p.shop, "orders"}.Sanitize(), pgx.Identifier{p.outbox, "events"}.Sanitize()
	s := &shop{
		place: p, pool: pool, ledger: l,
		insertOrder: "insert into " + orders + " (customer, total) values ($1, $2) returning number",
		insertEvent: "insert into " + events + ` (id, aggregate_type, aggregate_id, event_type, payload)
			values ($1, 'order', $2, 'order.created', $3)`,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, schema := range []string{p.outbox, p.shop} {
		if _, err := pool.Exec(ctx, "create schema "+pgx.Identifier{schema}.Sanitize()); err != nil {
			return nil, fmt.Errorf("creating schema %s: %w", schema, err)
		}
		s.made = append(s.made, schema)
	}
	_, err = pool.Exec(ctx, "create table "+orders+` (number bigint primary key generated always as identity,
		customer text not null, total numeric not null, created_at timestamptz not null default now())`)
	if err != nil {
		return nil, fmt.Errorf("creating the table of orders: %w", err)
	}
	err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		return sql.Migrate(ctx, conn.Conn(), p.outbox, func(int32, string) {})
	})
	if err != nil {
		return nil, fmt.Errorf("migrating: %w", err)
	}
	return s, nil
}

// close removes the schemas that were made, unless the whole server goes.
func (s *shop) close() error {
	defer s.pool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	if !s.place.sharedDatabase {
		return nil
	}
	for _, schema := range s.made {
		if _, err := s.pool.Exec(ctx, "drop schema "+pgx.Identifier{schema}.Sanitize()+" cascade"); err != nil {
			return fmt.Errorf("removing schema %s: %w", schema, err)
		}
	}
	return nil
}

// trade lets clients order for a time. It returns when the last of their transactions has ended.
func (s *shop) trade(ctx context.Context, p phase, length time.Duration) error {
	until := time.Now().Add(length)
	g, ctx := errgroup.WithContext(ctx)
	for range clients {
		g.Go(func() error {
			for ctx.Err() == nil && time.Now().Before(until) {
				if err := s.order(ctx, p.name); err != nil {
					return fmt.Errorf("the shop could not take an order: %w", err)
				}
				if p.pause > 0 {
					sleep(ctx, min(rand.N(2*p.pause), time.Until(until)))
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// order is the transactional outbox in one function: the order and the event are one transaction.
func (s *shop) order(ctx context.Context, phase string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionTimeout)
	defer cancel()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a COMMIT

	customer, total := "customer "+strconv.Itoa(rand.IntN(1000)), 5+rand.IntN(500)
	var number int64
	if err := tx.QueryRow(ctx, s.insertOrder, customer, total).Scan(&number); err != nil {
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	payload := fmt.Sprintf(`{"number": %d, "customer": %q, "total": %d}`, number, customer, total)
	if _, err := tx.Exec(ctx, s.insertEvent, id, strconv.FormatInt(number, 10), payload); err != nil {
		return err
	}

	if rand.IntN(rolledBackOneIn) == 0 {
		s.ledger.rollingBack(id)
		return tx.Rollback(ctx)
	}
	s.ledger.committing(id, phase)
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	s.ledger.committed(id)
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
