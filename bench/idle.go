package main

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// idle counts what a relay does when there is nothing to do. The server itself counts: it logs each statement with the
// name of the session that sent it, so that neither autovacuum nor this program is taken for the relay.
func idle(ctx context.Context, b *bench) error {
	length := b.duration(time.Minute)
	return b.at(ctx, classic, func(p *place) error {
		if err := (outbox{}).prepare(ctx, p); err != nil {
			return err
		}
		for _, statement := range []string{
			"alter system set log_statement = 'all'", "alter system set log_line_prefix = '%a: '", "select pg_reload_conf()",
		} {
			if _, err := p.db.Exec(ctx, statement); err != nil {
				return err
			}
		}
		r, err := outbox{}.run(ctx, p)
		if err != nil {
			return err
		}
		time.Sleep(5 * time.Second) // it has started and gone to sleep
		statements, err := p.statements()
		if err != nil {
			return err
		}
		cpu, err := cpuTime(r.pid, false)
		if err != nil {
			return err
		}
		time.Sleep(length)
		cpuAfter, err := cpuTime(r.pid, false)
		if err != nil {
			return err
		}
		after, err := p.statements()
		if err != nil {
			return err
		}
		minutes := length.Minutes()
		b.report.add("idle, statements a minute", "", float64(after-statements)/minutes, 0, atMost(30))
		b.report.add("idle, CPU of the relay", "% of a core", (cpuAfter-cpu).Seconds()/length.Seconds()*100, 0, atMost(0.1))
		for _, statement := range []string{"alter system reset all", "select pg_reload_conf()"} {
			if _, err := p.db.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return r.stop()
	})
}

// statements counts those of all relays in the server's log.
func (p *place) statements() (n int, err error) {
	f, err := os.Open(filepath.Join(p.bench.stack.Dir, "postgres.log"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ": LOG:")
		if strings.HasPrefix(name, "outbox-relay ") && (strings.Contains(rest, "statement:") || strings.Contains(rest, "execute ")) {
			n++
		}
	}
	return n, lines.Err()
}
