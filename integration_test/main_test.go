// Package integration_test runs the relay's binary, as a process of its own, between a real PostgreSQL and a real RabbitMQ,
// and holds what was committed against what was consumed. `make test PACKAGES=./integration_test/` gives it servers.
//
// Each test has a database and a vhost of its own, except that the snapshots of a server's databases know each other's
// transactions. Tests that measure time do not call t.Parallel, so they run while no other test of the package does.
package integration_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// binary is the path of the relay, built with the race detector where the tests are.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "outbox-relay-")
	if err == nil {
		binary = filepath.Join(dir, "outbox-relay")
		err = build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "building the relay:", err)
		os.Exit(1)
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left:", err)
			code = 1
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build() error {
	args := []string{"build", "-o", binary}
	if race {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "..")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
