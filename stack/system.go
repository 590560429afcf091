package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// accountOf gives the account that a server of root's is to run as, and nil, the caller's, for anybody else.
func accountOf(name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	account, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("looking up its account: %w", err)
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func mkdir(dir string, account *syscall.Credential) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return give(dir, account)
}

func write(file, text string, account *syscall.Credential) error {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	return give(file, account)
}

func give(path string, account *syscall.Credential) error {
	if account == nil {
		return nil
	}
	return os.Chown(path, int(account.Uid), int(account.Gid))
}

// environment is the little that both servers get of the caller's, and the settings given.
func environment(settings ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}, settings...)
}

// FreePort chooses a port that nobody listens on, below the range from which systems take ports for outgoing
// connections (from 32768 on Linux): a server that was stopped must find its port free when it starts again, and a
// client that dials it meanwhile must not happen to connect to itself.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := 20000 + rand.IntN(12000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("looking for a free port: %w", err)
}

func missing(what, where string) error {
	return errors.New(what + " is neither in " + where + " nor in PATH: apt-get install postgresql rabbitmq-server")
}
