package main

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// relay is a process of `outbox-relay run`. It has one goroutine, which waits for its end.
type relay struct {
	name     string
	cmd      *exec.Cmd
	httpAddr string
	ending   atomic.Bool // it was killed or asked to end
	done     chan struct{}
}

// startRelay starts it with its log in dir. died is called when it ends by itself.
func startRelay(program, dir, name, httpAddr string, settings []string, died func(*relay)) (*relay, error) {
	r := &relay{name: name, cmd: exec.Command(program, "run"), httpAddr: httpAddr, done: make(chan struct{})}
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("creating the relay's log: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has a copy of its own
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.Env = append([]string{"OUTBOX_HTTP_ADDR=" + httpAddr}, settings...)
	r.cmd.SysProcAttr = attributes()

	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death of this thread is what PR_SET_PDEATHSIG tells the child of, prctl(2)
		defer runtime.UnlockOSThread()
		defer close(r.done)
		err := r.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = r.cmd.Wait()
		if !r.ending.Load() {
			died(r)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s run: %w", program, err)
	}
	return r, nil
}

func (r *relay) signal(s syscall.Signal) { _ = r.cmd.Process.Signal(s) } // it may have ended just now

func (r *relay) kill() {
	r.ending.Store(true)
	r.signal(syscall.SIGKILL)
	<-r.done
}

// stop asks it to end and waits for that; what is said is what went wrong.
func (r *relay) stop(limit time.Duration) error {
	r.ending.Store(true)
	r.signal(syscall.SIGTERM)
	select {
	case <-r.done:
	case <-time.After(limit):
		r.signal(syscall.SIGQUIT) // its goroutines go to its log
		select {
		case <-r.done:
		case <-time.After(5 * time.Second):
			r.kill()
		}
		return fmt.Errorf("%s had not ended %s after SIGTERM", r.name, limit)
	}
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with %s after SIGTERM", r.name, r.cmd.ProcessState)
	}
	return nil
}

// get asks its HTTP server; an answer other than 200 is an error.
func (r *relay) get(path string, read func(*bufio.Scanner)) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + r.httpAddr + path)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	read(lines)
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return lines.Err()
}

// ready tells whether it can publish and hears.
func (r *relay) ready() bool {
	deaf := false
	err := r.get("/readyz", func(lines *bufio.Scanner) {
		for lines.Scan() {
			deaf = deaf || strings.Contains(lines.Text(), `"listener":"not`)
		}
	})
	return err == nil && !deaf
}

// metric gives a series of /metrics without labels.
func (r *relay) metric(name string) (value float64, err error) {
	err = r.get("/metrics", func(lines *bufio.Scanner) {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
				value, _ = strconv.ParseFloat(text, 64)
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("asking %s for %s: %w", r.name, name, err)
	}
	return value, nil
}
