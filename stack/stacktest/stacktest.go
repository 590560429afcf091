// Package stacktest gives tests their place on real servers: a database and a vhost of their own on the servers that
// all tests share, or a stack of their own when they stop servers.
//
// The shared servers are those of DATABASE_URL and AMQP_URL. `make test` sets both (see stack/with-servers); without
// them a test fails and says so, it never skips. Everything made here is removed when the test ends.
package stacktest

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/stack"
)

const (
	noServers = " is not set: run `make test`, or for one package `make test PACKAGES=./listener/`"

	// cleanupTimeout bounds what runs after the test's own context has ended.
	cleanupTimeout = 30 * time.Second
)

// Postgres creates an empty database for the test and gives its URL, with the account of DATABASE_URL, which must be
// allowed to create databases. Channels and advisory locks are per database, so tests do not hear each other; the
// snapshot's xmin is not: transactions of other tests show in it.
func Postgres(tb testing.TB) string {
	tb.Helper()
	admin := sharedURL(tb, "DATABASE_URL")
	name := uniqueName(tb)
	execute(tb.Context(), tb, admin, "create database "+pgx.Identifier{name}.Sanitize())
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		execute(ctx, tb, admin, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)")
	})
	own := *admin
	own.Path = "/" + name
	return own.String()
}

// AMQP creates a vhost for the test and gives its URL, with the account of AMQP_URL. On a broker of the user's, where
// OUTBOX_TEST_RABBITMQCTL does not name a rabbitmqctl for it, all tests share the vhost of AMQP_URL: so give exchanges
// and queues names of their own even when the vhost is.
func AMQP(tb testing.TB) string {
	tb.Helper()
	broker := sharedURL(tb, "AMQP_URL")
	if os.Getenv("OUTBOX_TEST_RABBITMQCTL") == "" {
		tb.Log("OUTBOX_TEST_RABBITMQCTL is not set: the test shares the vhost of AMQP_URL with others")
		return broker.String()
	}
	name := uniqueName(tb)
	Rabbitmqctl(tb, "add_vhost", name)
	tb.Cleanup(func() { Rabbitmqctl(tb, "delete_vhost", name) })
	Rabbitmqctl(tb, "set_permissions", "-p", name, broker.User.Username(), ".*", ".*", ".*")
	own := *broker
	own.Path = "/" + name
	return own.String()
}

// Rabbitmqctl runs a command on the shared broker and gives what it printed. It fails the test where
// OUTBOX_TEST_RABBITMQCTL names no program that does so.
func Rabbitmqctl(tb testing.TB, args ...string) string {
	tb.Helper()
	program := os.Getenv("OUTBOX_TEST_RABBITMQCTL")
	if program == "" {
		tb.Fatal("OUTBOX_TEST_RABBITMQCTL is not set: it names a rabbitmqctl for the broker of AMQP_URL")
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout) // also called by clean-ups
	defer cancel()
	out, err := exec.CommandContext(ctx, program, append([]string{"--quiet"}, args...)...).CombinedOutput()
	if err != nil {
		tb.Fatalf("rabbitmqctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Own starts a stack for this test alone, to kill, freeze and restart. Its goroutines end with the test's clean-up, so
// look for leaks in TestMain (goleak.VerifyTestMain), not in the test.
func Own(tb testing.TB, o stack.Options) *stack.Stack {
	tb.Helper()
	o.Volatile = true
	s, err := stack.Start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// uniqueName is fit for a database and a vhost, and tells in the servers' logs and lists which test it belongs to.
func uniqueName(tb testing.TB) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, tb.Name())
	return readable[:min(len(readable), 40)] + "_" + strings.ToLower(rand.Text()[:8]) // PostgreSQL keeps 63 bytes
}

func sharedURL(tb testing.TB, variable string) *url.URL {
	tb.Helper()
	raw := os.Getenv(variable)
	if raw == "" {
		tb.Fatal(variable + noServers)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		tb.Fatalf("%s must be a URL with a host for the tests", variable) // it may hold a password, so it isn't shown
	}
	return u
}

func execute(ctx context.Context, tb testing.TB, database *url.URL, sql string) {
	tb.Helper()
	conn, err := pgx.Connect(ctx, database.String())
	if err != nil {
		tb.Fatal(err)
	}
	_, err = conn.Exec(ctx, sql)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}
