package stack_test

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/outbox-relay/outbox-relay/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, o stack.Options) *stack.Stack {
	t.Helper()
	o.Volatile, o.Log = true, t.Output()
	s, err := stack.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTwoStacksThatLeaveNothing(t *testing.T) {
	for _, name := range []string{"one", "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{})
			useDatabase(t, s)
			useBroker(t, s)
			if len(processesUnder(t, s.Dir)) < 3 {
				t.Fatalf("found too few processes of the stack to believe what follows: %q", processesUnder(t, s.Dir))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if left := processesUnder(t, s.Dir); len(left) > 0 {
				t.Errorf("left running: %q", left)
			}
			if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", s.Dir, err)
			}
			for _, raw := range []string{s.DatabaseURL, s.AMQPURL} {
				u, _ := url.Parse(raw)
				if conn, err := net.Dial("tcp", u.Host); err == nil {
					_ = conn.Close()
					t.Errorf("%s still answers", u.Host)
				}
			}
		})
	}
}

func TestServersComeBackOnTheSameData(t *testing.T) {
	s := start(t, stack.Options{})
	ctx := t.Context()
	execute(t, s, "create table kept ()")
	if _, err := s.Rabbitmqctl(ctx, "add_vhost", "kept"); err != nil {
		t.Fatal(err)
	}
	for _, server := range []*stack.Server{s.Postgres, s.RabbitMQ} {
		for _, end := range []func() error{server.Kill, func() error { return server.Stop(ctx) }} {
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if server.PID() != 0 {
				t.Fatal("there is a PID after the end")
			}
			if err := server.Start(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	execute(t, s, "select from kept")
	if out, err := s.Rabbitmqctl(ctx, "--quiet", "list_vhosts"); err != nil || !strings.Contains(out, "kept") {
		t.Fatalf("vhosts: %q, %v", out, err)
	}
}

func TestFrozenServerIsKilledToo(t *testing.T) {
	s := start(t, stack.Options{NoRabbitMQ: true})
	if err := s.Postgres.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := processesUnder(t, s.Dir); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := stack.Start(ctx, stack.Options{}); err == nil {
		t.Fatal("no error")
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func execute(t *testing.T, s *stack.Stack, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func useDatabase(t *testing.T, s *stack.Stack) {
	t.Helper()
	execute(t, s, "create table t as select 1")
}

func useBroker(t *testing.T, s *stack.Stack) {
	t.Helper()
	conn, err := amqp.Dial(s.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
}

// processesUnder finds every process that works in the stack's folder, whoever its parent is by now.
func processesUnder(t *testing.T, dir string) []string {
	t.Helper()
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		t.Skip("needs Linux's /proc")
	}
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir) {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
			found = append(found, string(name))
		}
	}
	return found
}
