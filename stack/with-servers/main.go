// Command with-servers runs a command with a throwaway PostgreSQL and RabbitMQ and removes both afterwards:
//
//	with-servers go test -race ./...
//
// The command finds them in DATABASE_URL and AMQP_URL, and a rabbitmqctl for the broker in OUTBOX_TEST_RABBITMQCTL. A
// server whose URL is set already is used as it is and not started. Its TMPDIR lies in the servers' folder, so that what
// an interrupted test leaves behind goes with it. The exit code is the command's; 1 when a server fails; 130 after
// SIGINT, SIGTERM or SIGHUP, which end the command and the servers. The command's standard input is empty.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outbox-relay/outbox-relay/stack"
)

// grace is how long an interrupted command may go on.
const grace = 10 * time.Second

func main() { os.Exit(run(os.Args[1:])) }

func run(command []string) int {
	if len(command) == 0 {
		fmt.Fprintln(os.Stderr, "usage: with-servers COMMAND [ARGUMENT]...")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	o := stack.Options{
		NoPostgres: os.Getenv("DATABASE_URL") != "",
		NoRabbitMQ: os.Getenv("AMQP_URL") != "",
		Volatile:   true,
		Log:        os.Stderr,
	}
	servers, err := stack.Start(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "with-servers:", err)
		if ctx.Err() != nil {
			return 130
		}
		return 1
	}
	env, err := environment(servers)
	code := 1
	if err == nil {
		code, err = runCommand(ctx, command, env)
	}
	if err = errors.Join(err, servers.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "with-servers:", err)
		return max(code, 1)
	}
	return code
}

func environment(servers *stack.Stack) ([]string, error) {
	tmp := filepath.Join(servers.Dir, "tmp")
	if err := os.Mkdir(tmp, 0o711); err != nil { //nolint:gosec // servers that a test starts run on accounts of their own
		return nil, err
	}
	env := append(os.Environ(), "TMPDIR="+tmp)
	if servers.Postgres != nil {
		env = append(env, "DATABASE_URL="+servers.DatabaseURL)
	}
	if servers.RabbitMQ != nil {
		env = append(env, "AMQP_URL="+servers.AMQPURL, "OUTBOX_TEST_RABBITMQCTL="+servers.RabbitmqctlPath())
	}
	return env, nil
}

// runCommand gives the command a process group of its own: whoever interrupts us, with Ctrl-C or with a signal to this
// process alone, all of the command is told once, and nothing of it outlives us.
func runCommand(ctx context.Context, command, env []string) (int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = grace
	err := cmd.Run()
	if cmd.Process == nil {
		return 1, err
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually nobody is left
	switch {
	case ctx.Err() != nil:
		return 130, errors.New("interrupted")
	case cmd.ProcessState.ExitCode() >= 0:
		return cmd.ProcessState.ExitCode(), nil
	default:
		return 1, err // ended by a signal
	}
}
