package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

func (s *Stack) startPostgres(ctx context.Context, o Options) error {
	began := time.Now()
	bin, err := postgresBin()
	if err != nil {
		return err
	}
	account, err := accountOf("postgres")
	if err != nil {
		return fmt.Errorf("PostgreSQL refuses to run as root: %w", err)
	}
	data := filepath.Join(s.Dir, "postgres")
	if err := mkdir(data, account); err != nil {
		return err
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "--pgdata="+data, "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	initdb.Dir, initdb.Env = data, environment()
	initdb.SysProcAttr = attributes(account, 0)
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("creating a PostgreSQL cluster with %s: %w\n%s", initdb.Path, err, out)
	}

	var port int
	server := &Server{
		name: "PostgreSQL",
		command: func() *exec.Cmd {
			settings := []string{
				"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "unix_socket_directories=",
				"max_connections=200", "max_prepared_transactions=10",
				"dynamic_shared_memory_type=mmap", // files under Dir: nothing in /dev/shm outlives a SIGKILL
				"fsync=" + onOff(!o.Volatile), "full_page_writes=" + onOff(!o.Volatile),
			}
			cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data)
			for _, setting := range settings {
				cmd.Args = append(cmd.Args, "-c", setting)
			}
			cmd.Dir, cmd.Env = data, environment()
			return cmd
		},
		ready: func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, s.DatabaseURL)
			if err != nil {
				return err
			}
			return conn.Close(ctx)
		},
		account:  account,
		shutdown: syscall.SIGINT,  // fast
		orphaned: syscall.SIGQUIT, // immediate, and its shared memory is removed
		logfile:  filepath.Join(s.Dir, "postgres.log"),
	}
	s.Postgres = server
	err = server.startAnew(ctx, func() error {
		port, err = FreePort()
		s.DatabaseURL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Log, "PostgreSQL is up at %s (%.1f s)\n", s.DatabaseURL, time.Since(began).Seconds())
	return nil
}

// postgresBin finds the newest PostgreSQL. Debian keeps its server programs out of PATH.
func postgresBin() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) > 0 {
		newest := slices.MaxFunc(found, func(a, b string) int { return versionIn(a) - versionIn(b) })
		return filepath.Dir(newest), nil
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(initdb), nil
	}
	return "", missing("PostgreSQL's initdb", "/usr/lib/postgresql/*/bin")
}

func versionIn(initdb string) int {
	version, _ := strconv.Atoi(strings.Split(initdb, "/")[4])
	return version
}

// removeSharedMemory does what only the next start of a killed PostgreSQL would do: it removes the small System V
// segment that guards the data folder. Its id is the last number on the seventh line of postmaster.pid (miscinit.h).
func removeSharedMemory(data string) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return // it was never started, or ended in order
	}
	if lines := strings.Split(string(text), "\n"); len(lines) > 6 {
		if fields := strings.Fields(lines[6]); len(fields) == 2 {
			_ = exec.Command("ipcrm", "-m", fields[1]).Run()
		}
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
