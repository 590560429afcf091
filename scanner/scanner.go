// Package scanner is the relay's side of the outbox table: it claims events, writes back what became of them, takes over
// what dead relays held, and prunes. It knows neither RabbitMQ nor when to wake.
//
// Every claim is one short transaction that commits without waiting for the disk: a claim lost in a crash of the server is
// only a second delivery. Every write is fenced by the claim's id, so a relay that slept past its lease changes nothing.
// All times are the database's.
package scanner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-relay/outbox-relay/sql"
)

// Options configure a Scanner. All fields but Pooled are required.
type Options struct {
	Schema      string
	Lease       time.Duration // how long a claim holds
	MaxAttempts int           // an expired lease after that many attempts makes an event DEAD
	Retention   time.Duration // of PUBLISHED events; 0: deleted on publish
	Pooled      bool          // connections go through a transaction-mode pooler: no session state
}

// Scanner works on one outbox table. The claims are for one goroutine, the others for any. It starts no
// goroutine but those of pgx's pool.
type Scanner struct {
	o    Options
	sql  *sql.Statements
	pool *pgxpool.Pool

	frontier   frontier
	generation uint64        // of connections, when the frontier was last started anew
	fresh      atomic.Uint64 // generation of connections: a new one may lead to another server
	reached    atomic.Int64  // the frontier, for ExpireLeases
	prune      pruning
}

// session is what every statement of this package relies on: the walk along an index that its text describes, whatever
// the statistics say, and commits that do not wait for the disk.
var session = map[string]string{
	"synchronous_commit": "off",
	"enable_seqscan":     "off",
	"enable_bitmapscan":  "off",
	"enable_hashjoin":    "off",
	"enable_mergejoin":   "off",
	"jit":                "off",
	"plan_cache_mode":    "force_generic_plan",
}

// New prepares a Scanner on a pool of its own, made from config; nothing connects yet. Close ends it.
func New(ctx context.Context, config *pgxpool.Config, o Options) (*Scanner, error) {
	statements, err := sql.ForSchema(o.Schema)
	if err != nil {
		return nil, err
	}
	s := &Scanner{o: o, sql: statements, frontier: newFrontier()}
	config = config.Copy()
	config.MaxConns = max(config.MaxConns, minConns)
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // an idle relay stays idle
	config.AfterConnect = func(context.Context, *pgx.Conn) error {
		s.fresh.Add(1)
		return nil
	}
	if o.Pooled {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		for name, value := range session {
			config.ConnConfig.RuntimeParams[name] = value
		}
	}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("preparing connections to PostgreSQL: %w", err)
	}
	return s, nil
}

// minConns: one each to claim, to settle and to keep house, and one to notify, so that none ever waits for another.
const minConns = 4

// Close closes the connections.
func (s *Scanner) Close() { s.pool.Close() }

// Notify sends a notification.
func (s *Scanner) Notify(ctx context.Context, channel, payload string) error {
	if _, err := s.pool.Exec(ctx, "select pg_notify($1, $2)", channel, payload); err != nil {
		return fmt.Errorf("sending a notification: %w", err)
	}
	return nil
}

// ErrSchema tells that the schema is missing or of another version than this build wants.
type ErrSchema struct {
	Schema        string
	Version, Want int32 // Version 0: there is none
}

func (e *ErrSchema) Error() string {
	if e.Version == 0 {
		return fmt.Sprintf("schema %q has no outbox: run `outbox-relay migrate` (with the same --schema)", e.Schema)
	}
	return fmt.Sprintf("schema %q has version %d, this build wants %d: run `outbox-relay migrate`", e.Schema, e.Version, e.Want)
}

// CheckSchema returns an *ErrSchema unless the schema has at least the version that this build wants: a newer one may stand
// there during a rolling upgrade.
func (s *Scanner) CheckSchema(ctx context.Context) error {
	return checkSchema(ctx, s.pool, s.o.Schema)
}

// querier is a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func checkSchema(ctx context.Context, db querier, schema string) error {
	missing := &ErrSchema{Schema: schema, Want: sql.Version()}
	table := pgx.Identifier{schema, "schema_version"}.Sanitize()
	var exists bool
	if err := db.QueryRow(ctx, "select to_regclass($1) is not null", table).Scan(&exists); err != nil {
		return fmt.Errorf("looking for the outbox in schema %q: %w", schema, err)
	}
	if !exists {
		return missing
	}
	if err := db.QueryRow(ctx, "select version from "+table).Scan(&missing.Version); err != nil {
		return fmt.Errorf("reading the version of schema %q: %w", schema, err)
	}
	if missing.Version < missing.Want {
		return missing
	}
	return nil
}

// ApplicationName is what a relay's sessions call themselves, so that others find them in pg_stat_activity.
func ApplicationName(schema, instance string) string {
	return truncate(applicationPrefix(schema)+instance, 63)
}

func applicationPrefix(schema string) string {
	sum := sha256.Sum256([]byte(schema))
	return "outbox-relay " + hex.EncodeToString(sum[:4]) + " "
}

// Instance names this process among the relays: host and pid.
func Instance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return truncate(host, 30) + "/" + strconv.Itoa(os.Getpid())
}

func truncate(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// query runs one statement; collect reads its rows. Through a transaction-mode pooler the settings of a session travel with
// the statement, in the same round trip and transaction.
func (s *Scanner) query(ctx context.Context, text string, args []any, collect func(pgx.Rows) error) (err error) {
	if s.o.Pooled {
		batch := &pgx.Batch{}
		batch.Queue(setLocally)
		batch.Queue(text, args...).Query(func(rows pgx.Rows) error { return finish(rows, collect) })
		err = s.pool.SendBatch(ctx, batch).Close()
	} else {
		rows, queryErr := s.pool.Query(ctx, text, args...)
		if queryErr == nil {
			queryErr = finish(rows, collect)
		}
		err = queryErr
	}
	// A server that became a standby keeps its connections and refuses to write: look for the primary with new ones.
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "25006" { // read_only_sql_transaction
		s.pool.Reset()
	}
	return err
}

func finish(rows pgx.Rows, collect func(pgx.Rows) error) error {
	defer rows.Close()
	if err := collect(rows); err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

// exec runs one statement and returns how many rows it changed.
func (s *Scanner) exec(ctx context.Context, text string, args ...any) (changed int64, err error) {
	err = s.query(ctx, text, args, func(rows pgx.Rows) error {
		rows.Close()
		changed = rows.CommandTag().RowsAffected()
		return rows.Err()
	})
	return changed, err
}

// setLocally is the session's settings for one transaction.
var setLocally = func() string {
	var calls []string
	for name, value := range session {
		calls = append(calls, fmt.Sprintf("set_config('%s', '%s', true)", name, value))
	}
	slices.Sort(calls)
	return "select " + strings.Join(calls, ", ")
}()
