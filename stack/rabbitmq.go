package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// loopbackOnly keeps Erlang's distribution off the network; RabbitMQ's scripts split it at blanks.
const loopbackOnly = "-kernel inet_dist_use_interface {127,0,0,1}"

func (s *Stack) startRabbitMQ(ctx context.Context, o Options) error {
	began := time.Now()
	bin, err := rabbitmqBin()
	if err != nil {
		return err
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return missing("Erlang's epmd", "PATH")
	}
	account, _ := accountOf("rabbitmq") // RabbitMQ does run as root where there is no such account
	home := filepath.Join(s.Dir, "rabbitmq")
	if err := mkdir(home, account); err != nil {
		return err
	}
	files := map[string]string{
		".erlang.cookie":    rand.Text(),
		"rabbitmq-env.conf": "",
		"advanced.config":   "[].\n",
		"enabled_plugins":   "[].\n", // no management: a faster start, and nothing that takes part in measurements
		"rabbitmq.conf":     "disk_free_limit.absolute = 50MB\nvm_memory_high_watermark.relative = 0.6\n",
	}
	for name, text := range files {
		if err := write(filepath.Join(home, name), text, account); err != nil {
			return err
		}
	}

	var epmdPort, port, distPort int
	s.epmd = &Server{
		name: "epmd",
		command: func() *exec.Cmd {
			cmd := exec.Command(epmd, "-port", strconv.Itoa(epmdPort), "-address", "127.0.0.1")
			cmd.Dir, cmd.Env = home, environment()
			return cmd
		},
		ready:    func(ctx context.Context) error { return dial(ctx, epmdPort) },
		account:  account,
		shutdown: syscall.SIGTERM,
		orphaned: syscall.SIGKILL,
		logfile:  filepath.Join(s.Dir, "epmd.log"),
	}
	if err := s.epmd.startAnew(ctx, func() (err error) { epmdPort, err = FreePort(); return err }); err != nil {
		return err
	}
	cli := environment(
		"HOME="+home,
		"ERL_EPMD_PORT="+strconv.Itoa(epmdPort),
		"RABBITMQ_NODENAME=outbox@localhost",
		"RABBITMQ_CONF_ENV_FILE="+filepath.Join(home, "rabbitmq-env.conf"),
		"RABBITMQ_CTL_ERL_ARGS="+loopbackOnly,
		"RABBITMQ_CTL_DIST_PORT_MIN=0", // any
		"RABBITMQ_CTL_DIST_PORT_MAX=0",
	)
	if err := s.writeRabbitmqctl(bin, cli); err != nil {
		return err
	}
	s.RabbitMQ = &Server{
		name: "RabbitMQ",
		command: func() *exec.Cmd {
			cmd := exec.Command(filepath.Join(bin, "rabbitmq-server"))
			cmd.Dir = home
			cmd.Env = slices.Concat(cli, []string{
				"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
				"RABBITMQ_NODE_PORT=" + strconv.Itoa(port),
				"RABBITMQ_DIST_PORT=" + strconv.Itoa(distPort),
				"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + loopbackOnly,
				"RABBITMQ_MNESIA_BASE=" + filepath.Join(home, "mnesia"),
				"RABBITMQ_LOG_BASE=" + filepath.Join(home, "log"),
				"RABBITMQ_LOGS=-", // to standard output
				"RABBITMQ_CONFIG_FILE=" + filepath.Join(home, "rabbitmq.conf"),
				"RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(home, "advanced.config"),
				"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(home, "enabled_plugins"),
				"RUNNING_UNDER_SYSTEMD=true", // the script becomes the Erlang VM instead of a shell that waits for it
			})
			return cmd
		},
		ready:    func(context.Context) error { return handshake(s.AMQPURL) },
		account:  account,
		shutdown: syscall.SIGTERM,
		orphaned: syscall.SIGKILL,
		logfile:  filepath.Join(s.Dir, "rabbitmq.log"),
	}
	err = s.RabbitMQ.startAnew(ctx, func() (err error) {
		if distPort, err = FreePort(); err != nil {
			return err
		}
		port, err = FreePort()
		s.AMQPURL = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Log, "RabbitMQ is up at %s (%.1f s)\n", s.AMQPURL, time.Since(began).Seconds())
	return nil
}

// writeRabbitmqctl leaves a rabbitmqctl for this broker in Dir, for people and for other processes.
func (s *Stack) writeRabbitmqctl(bin string, env []string) error {
	var script strings.Builder
	script.WriteString("#!/bin/sh\n# rabbitmqctl for the throwaway broker of this folder.\nexec env -i")
	for _, setting := range slices.Concat(env, []string{filepath.Join(bin, "rabbitmqctl")}) {
		script.WriteString(" '" + strings.ReplaceAll(setting, "'", `'\''`) + "'")
	}
	script.WriteString(" \"$@\"\n")
	if err := os.WriteFile(s.RabbitmqctlPath(), []byte(script.String()), 0o700); err != nil { //nolint:gosec // a program
		return fmt.Errorf("writing rabbitmqctl's script: %w", err)
	}
	return nil
}

// RabbitmqctlPath is a program for the caller's account that works like rabbitmqctl on this broker.
func (s *Stack) RabbitmqctlPath() string { return filepath.Join(s.Dir, "rabbitmqctl") }

// Rabbitmqctl runs a command on the broker, about a third of a second each, and gives what it printed. With --quiet
// as the first argument that is the result alone.
func (s *Stack) Rabbitmqctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, s.RabbitmqctlPath(), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("rabbitmqctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// rabbitmqBin finds RabbitMQ's own scripts: what Debian puts into PATH insists on being run by root or rabbitmq.
func rabbitmqBin() (string, error) {
	const debian = "/usr/lib/rabbitmq/bin"
	if _, err := os.Stat(filepath.Join(debian, "rabbitmq-server")); err == nil {
		return debian, nil
	}
	if server, err := exec.LookPath("rabbitmq-server"); err == nil {
		return filepath.Dir(server), nil
	}
	return "", missing("rabbitmq-server", debian)
}

func handshake(url string) error {
	conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	return conn.Close()
}

func dial(ctx context.Context, port int) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return conn.Close()
}
