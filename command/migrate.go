package command

import (
	"context"
	"fmt"

	"github.com/outbox-relay/outbox-relay/config"
	"github.com/outbox-relay/outbox-relay/sql"
)

// MigrateCommand brings the outbox's schema to the version of this build. Several may start at once.
type MigrateCommand struct {
	Print bool `help:"Print the SQL, run none of it, connect to nothing."`

	config.File     `group:"General:"`
	config.Database `group:"PostgreSQL:"`
}

// Run migrates, and prints each step.
func (c *MigrateCommand) Run(ctx context.Context, env *Env) error {
	if c.Print {
		return sql.PrintMigrations(env.Stdout, c.Schema)
	}
	conn, err := connect(ctx, &c.Database)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	steps := 0
	err = sql.Migrate(ctx, conn, c.Schema, func(version int32, name string) {
		steps++
		fmt.Fprintf(env.Stdout, "schema %s: applying version %d, %s\n", c.Schema, version, name)
	})
	if err != nil {
		return err
	}
	if steps == 0 {
		fmt.Fprintf(env.Stdout, "schema %s is up to date, version %d\n", c.Schema, sql.Version())
	}
	return nil
}
