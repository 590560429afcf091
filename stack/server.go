package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = 90 * time.Second // RabbitMQ on a busy machine with one core
	stopTimeout  = 30 * time.Second
)

var (
	errPortTaken  = errors.New("port already in use")
	errNotRunning = errors.New("not running")
)

// Server is one server process with its children. It may be stopped, killed, frozen and started again on the same
// ports and data, which is what fault tests do. Methods may be called from any goroutine, one at a time takes effect.
type Server struct {
	name     string
	command  func() *exec.Cmd            // a fresh one for every start
	ready    func(context.Context) error // one attempt to use the server
	account  *syscall.Credential         // nil: the caller's
	shutdown syscall.Signal              // asks for an orderly end
	orphaned syscall.Signal              // what the process gets when its parent dies
	logfile  string

	mu   sync.Mutex
	proc *process // nil when not running
}

// process is owned by the goroutine that started it, which closes done after waiting for its end.
type process struct {
	pid  int
	done chan struct{}
}

// PID of the server's main process (postmaster, Erlang VM), or 0 when it is not running.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.pid
}

// Start returns when the server accepts connections, or has failed to and is stopped.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		return fmt.Errorf("starting %s: already running", s.name)
	}
	from := size(s.logfile)
	proc, err := s.launch()
	if err != nil {
		return fmt.Errorf("starting %s: %w", s.name, err)
	}
	s.proc = proc
	if err := s.await(ctx, proc); err != nil {
		killed := s.kill()
		log := tail(s.logfile, from)
		if strings.Contains(log, "already in use") || strings.Contains(log, "eaddrinuse") {
			err = fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return errors.Join(fmt.Errorf("starting %s: %w; the end of its log:\n%s", s.name, err, log), killed)
	}
	return nil
}

// startAnew starts the server for the first time. Between choosing a port and the server taking it somebody else may
// come first, so choose is called again then.
func (s *Server) startAnew(ctx context.Context, choose func() error) error {
	var err error
	for range 5 {
		if err = choose(); err != nil {
			return err
		}
		if err = s.Start(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

func (s *Server) await(ctx context.Context, proc *process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-proc.done:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("%w; last attempt to connect: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// launch starts the command in a process group of its own, so that a terminal's Ctrl-C does not reach it. The death of
// the parent is signalled when the *thread* that forked ends (prctl(2), PR_SET_PDEATHSIG), hence the locked one.
func (s *Server) launch() (*process, error) {
	log, err := os.OpenFile(s.logfile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has a copy of its own
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes(s.account, s.orphaned)

	proc := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(proc.done)
		err := cmd.Start()
		if err == nil {
			proc.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // a server that is killed always "fails"
		}
	}()
	return proc, <-started
}

// Stop asks the server to end in order and waits for it: a fast shutdown of PostgreSQL, a clean one of RabbitMQ.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return fmt.Errorf("stopping %s: %w", s.name, errNotRunning)
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	family := family(s.proc.pid)
	_ = syscall.Kill(s.proc.pid, s.shutdown) // it may have ended by itself
	select {
	case <-s.proc.done:
	case <-ctx.Done():
		return fmt.Errorf("stopping %s: %w", s.name, ctx.Err())
	}
	s.proc = nil
	return s.gone(family)
}

// Kill ends the server and its children with SIGKILL and waits until they are gone. It does nothing when the server
// is not running.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	return s.kill()
}

func (s *Server) kill() error {
	family := family(s.proc.pid)
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-s.proc.done
	s.proc = nil
	return s.gone(family)
}

// Freeze stops the server and its children as they are (SIGSTOP): sockets stay open, nobody answers.
func (s *Server) Freeze() error { return s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return fmt.Errorf("sending %s to %s: %w", sig, s.name, errNotRunning)
	}
	for _, pid := range family(s.proc.pid) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("sending %s to %s, process %d: %w", sig, s.name, pid, err)
		}
	}
	return nil
}

// gone waits for the children, which init reaps, not we: PostgreSQL's backends notice the death of their parent by
// themselves, RabbitMQ's port programs the end of their standard input.
func (s *Server) gone(family []int) error {
	deadline := time.Now().Add(stopTimeout)
	for _, pid := range family {
		for alive(pid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d of %s is still there %s after its end", pid, s.name, stopTimeout)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// tail gives the last lines that were written to file after the offset.
func tail(file string, offset int64) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text[min(offset, int64(len(text))):])), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
