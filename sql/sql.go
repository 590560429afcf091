// Package sql holds everything the relay says to PostgreSQL, as text: the migrations and, one to a file, the statements.
// It renders them for the schema that the user chose, always quoted, and knows nothing of what they are for.
package sql

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"strings"
	"text/template"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"
)

//go:embed grants.sql migration/*.sql statement/*.sql
var files embed.FS

// Statements are the texts of statement/, rendered for one schema. The comment at the head of each file says what its
// parameters and columns are.
type Statements struct {
	ClaimFresh     string
	ClaimNext      string
	ClaimDue       string
	ExpireLeases   string
	RenewLeases    string
	Settle         string
	SettleByDelete string
	Prune          string
	Status         string
	Relays         string
}

// ForSchema renders the statements for a schema of any name.
func ForSchema(schema string) (*Statements, error) {
	var s Statements
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		name := "statement/" + snake(v.Type().Field(i).Name) + ".sql"
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading embedded SQL: %w", err)
		}
		rendered, err := render(name, string(text), schema)
		if err != nil {
			return nil, err
		}
		v.Field(i).SetString(rendered)
	}
	return &s, nil
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func render(name, text, schema string) (string, error) {
	t, err := template.New(name).Parse(text)
	if err != nil {
		return "", fmt.Errorf("parsing embedded SQL: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data(schema)); err != nil {
		return "", fmt.Errorf("rendering embedded SQL: %w", err)
	}
	return b.String(), nil
}

func data(schema string) map[string]any {
	return map[string]any{
		"doorbell":         DoorbellLock(schema),
		"schema":           pgx.Identifier{schema}.Sanitize(),
		"schema_literal":   quoteLiteral(schema),
		"sequence_literal": quoteLiteral(pgx.Identifier{schema, "events_sequence_seq"}.Sanitize()),
	}
}

// DoorbellLock is the key of the advisory lock that a sleeping relay holds on an outbox. The insert trigger has it as a
// constant: a function of the schema's name would be parsed and computed anew by every statement that inserts.
func DoorbellLock(schema string) int64 {
	sum := sha256.Sum256([]byte("outbox-relay doorbell " + schema))
	return int64(binary.BigEndian.Uint64(sum[:8])) // any 64 bits will do
}

// quoteLiteral quotes as PostgreSQL's quote_literal does, whatever standard_conforming_strings says.
func quoteLiteral(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return ` E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
	}
	return "'" + s + "'"
}

// Migrate creates the schema where it is missing and brings it to the newest version, calling log before each step. It is
// safe to start several at once: one works, the others wait. A lock that is not to be had within three seconds is given
// up, so that nobody's inserts stand in line behind the migration, and tried for again until ctx ends.
func Migrate(ctx context.Context, conn *pgx.Conn, schema string, log func(version int32, name string)) error {
	for {
		err := tryMigrate(ctx, conn, schema, log)
		var pgErr *pgconn.PgError
		if err == nil || !errors.As(err, &pgErr) || pgErr.Code != "55P03" { // lock_not_available
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for a lock that another session holds: %w", err)
		case <-time.After(time.Second):
		}
	}
}

func tryMigrate(ctx context.Context, conn *pgx.Conn, schema string, log func(version int32, name string)) (err error) {
	ident := pgx.Identifier{schema}.Sanitize()
	// `create schema if not exists` is no protection against a twin that does the same at this moment.
	const key = "hashtextextended($1, 1)"
	if _, err := conn.Exec(ctx, "select pg_advisory_lock("+key+")", schema); err != nil {
		return fmt.Errorf("waiting for other migrations to end: %w", err)
	}
	defer func() {
		_, unlockErr := conn.Exec(context.WithoutCancel(ctx), "select pg_advisory_unlock("+key+")", schema)
		err = errors.Join(err, unlockErr)
	}()
	var exists bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_namespace where nspname = $1)", schema).Scan(&exists); err != nil {
		return fmt.Errorf("looking for schema %s: %w", ident, err)
	}
	if !exists {
		if _, err := conn.Exec(ctx, "create schema "+ident); err != nil {
			return fmt.Errorf("creating schema %s: %w", ident, err)
		}
	}
	m, err := migrate.NewMigrator(ctx, conn, ident+".schema_version")
	if err != nil {
		return fmt.Errorf("creating table %s.schema_version: %w", ident, err)
	}
	if err := load(m, schema); err != nil {
		return err
	}
	if log != nil {
		m.OnStart = func(version int32, name, _, _ string) { log(version, name) }
	}
	if err := m.Migrate(ctx); err != nil {
		return fmt.Errorf("migrating schema %s: %w", ident, err)
	}
	return nil
}

func load(m *migrate.Migrator, schema string) error {
	m.Data = data(schema)
	dir, err := fs.Sub(files, "migration")
	if err != nil {
		return fmt.Errorf("reading embedded migrations: %w", err)
	}
	if err := m.LoadMigrations(dir); err != nil {
		return fmt.Errorf("reading embedded migrations: %w", err)
	}
	return nil
}

// PrintMigrations writes the SQL that Migrate would run on an empty database. It needs no connection.
func PrintMigrations(w io.Writer, schema string) error {
	m, err := migrate.NewMigrator(context.Background(), nil, "")
	if err != nil {
		return fmt.Errorf("reading embedded migrations: %w", err)
	}
	if err := load(m, schema); err != nil {
		return err
	}
	ident := pgx.Identifier{schema}.Sanitize()
	fmt.Fprintf(w, "create schema if not exists %s;\n\ncreate table %s.schema_version (version int4 not null);\n", ident, ident)
	for _, step := range m.Migrations {
		fmt.Fprintf(w, "\n-- %s\nbegin;\n%s\ncommit;\n", step.Name, step.UpSQL)
	}
	grants, err := Grants(schema)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\ninsert into %s.schema_version values (%d);\n\n-- Not run by migrate:\n--\n%s", ident,
		len(m.Migrations), commented(grants))
	return err
}

func commented(text string) string {
	return "-- " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n-- ") + "\n"
}

// Grants is the page of SQL that gives three roles what they need.
func Grants(schema string) (string, error) {
	text, err := files.ReadFile("grants.sql")
	if err != nil {
		return "", fmt.Errorf("reading embedded SQL: %w", err)
	}
	return render("grants.sql", string(text), schema)
}

// Version is the newest version of the schema that this build knows.
func Version() int32 {
	steps, err := fs.Glob(files, "migration/*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	return int32(len(steps))
}
