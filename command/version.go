package command

import (
	"encoding/json"
	"fmt"
	"runtime/debug"
)

// version is set by the linker: -ldflags "-X github.com/outbox-relay/outbox-relay/command.version=1.2.3". Else it is what
// the go command knows.
var version string

// Build tells which program this is.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // ends in -dirty when the tree had changes; empty: unknown
	Go      string `json:"go"`
}

// ThisBuild is the running program's.
func ThisBuild() Build {
	b := Build{Version: version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Go = info.GoVersion
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if b.Commit != "" {
		b.Commit += dirty
	}
	return b
}

// VersionCommand prints which program this is.
type VersionCommand struct {
	Output
}

// Run prints it.
func (c *VersionCommand) Run(env *Env) error {
	b := ThisBuild()
	if c.json() {
		return json.NewEncoder(env.Stdout).Encode(b)
	}
	commit := b.Commit
	if commit == "" {
		commit = "unknown"
	}
	_, err := fmt.Fprintf(env.Stdout, "outbox-relay %s\ncommit %s\n%s\n", b.Version, commit, b.Go)
	return err
}
