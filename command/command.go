// Package command holds what outbox-relay does, a type for each of its commands. Their fields are the command line, as kong
// (github.com/alecthomas/kong) reads it; their Run methods do the work and return an error that a person can act on.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-relay/outbox-relay/config"
)

// CLI is the command line of outbox-relay.
type CLI struct {
	Run     RunCommand     `cmd:"" help:"Relay events from the outbox to RabbitMQ until stopped."`
	Migrate MigrateCommand `cmd:"" help:"Create the outbox in the database, or bring it up to date."`
	Status  StatusCommand  `cmd:"" help:"Tell how many events wait, are published or dead, and which relays are connected."`
	Enqueue EnqueueCommand `cmd:"" help:"Put one event into the outbox, by hand or from a script, and print its id."`
	Demo    DemoCommand    `cmd:"" help:"Watch events go through PostgreSQL, the relay and RabbitMQ, for half a minute."`
	Version VersionCommand `cmd:"" help:"Print the version."`
}

// Env is a command's surroundings. Log is the logger that the settings ask for; a command without settings for logs has
// one that discards.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
	Log            *slog.Logger
}

// Output is the form of what a command prints.
type Output struct {
	Output string `name:"output" default:"text" placeholder:"FORMAT" help:"text for people, json for scripts."`
}

// AfterApply checks the flag.
func (o *Output) AfterApply(l *config.Loader) error {
	l.OneOf("output", o.Output, "text", "json")
	return nil
}

func (o *Output) json() bool { return o.Output == "json" }

// connectTimeout holds where the URL does not set connect_timeout.
const connectTimeout = 10 * time.Second

// connect opens the one connection of a command that does its work and ends. The caller closes it.
func connect(ctx context.Context, d *config.Database) (*pgx.Conn, error) {
	pool, err := config.ParseDatabaseURL(d.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("--database-url (DATABASE_URL): %w", err)
	}
	c := pool.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares nothing, so a transaction-mode pooler will do
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connecting to PostgreSQL as user %q, database %q (--database-url, DATABASE_URL or libpq's PG* "+
			"variables): %w", c.User, cmp.Or(c.Database, c.User), unreachable(err))
	}
	return conn, nil
}

// unreachable puts what pgx says of each address it tried, which is a line for each and, where TLS is optional, often two,
// into one line.
func unreachable(err error) error {
	var failed *pgconn.ConnectError
	if !errors.As(err, &failed) {
		return err
	}
	lines := strings.Split(failed.Unwrap().Error(), "\n")
	slices.Sort(lines)
	lines = slices.Compact(lines)
	withoutTLS := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return strings.HasSuffix(line, "tls error: server refused TLS connection")
	})
	if len(withoutTLS) > 0 {
		lines = withoutTLS
	}
	return errors.New(strings.Join(lines, "; "))
}

// closeConn says goodbye even when ctx has ended, but does not wait long for it.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
