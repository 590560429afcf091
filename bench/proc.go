package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is what a process and those of its children that have ended used so far, of user and system together; with
// living, the children that live, too. Fields of /proc/PID/stat in hundredths of a second (proc(5)).
func cpuTime(pid int, living bool) (time.Duration, error) {
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading /proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	sum := time.Duration(ticks) * 10 * time.Millisecond
	if !living {
		return sum, nil
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, stat := range stats {
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		fields, err := statOf(child)
		if err != nil || fields[1] != strconv.Itoa(pid) {
			continue // it has ended meanwhile, or is another's
		}
		used, err := cpuTime(child, false)
		if err == nil {
			sum += used
		}
	}
	return sum, nil
}

// statOf gives the fields of /proc/PID/stat behind the name, which may hold anything: state, parent, …
func statOf(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 15 {
		return nil, fmt.Errorf("reading /proc/%d/stat: only %d fields", pid, len(fields))
	}
	return fields, nil
}

// peakMemory is the most that a process had resident so far, in MiB: VmHWM of /proc/PID/status (proc(5)).
func peakMemory(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	var kib float64
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0, fmt.Errorf("reading VmHWM of /proc/%d/status: %w", pid, err)
	}
	return kib / 1024, nil
}

// used is the CPU time that the servers and this program used so far.
type used struct{ postgres, rabbitmq, bench time.Duration }

func (b *bench) used() (u used, err error) {
	if u.postgres, err = cpuTime(b.stack.Postgres.PID(), true); err != nil {
		return u, err
	}
	if u.rabbitmq, err = cpuTime(b.stack.RabbitMQ.PID(), true); err != nil {
		return u, err
	}
	u.bench, err = cpuTime(os.Getpid(), false)
	return u, err
}

func (u used) since(before used) used {
	return used{u.postgres - before.postgres, u.rabbitmq - before.rabbitmq, u.bench - before.bench}
}

// each is a duration's share for one of n events, in microseconds.
func each(d time.Duration, n int) float64 { return float64(d.Microseconds()) / float64(n) }
