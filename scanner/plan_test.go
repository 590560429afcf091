package scanner

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-relay/outbox-relay/sql"
)

// No plan may depend on statistics that are not there yet, or on those of another hour.
func TestPlansWalkTheirIndexesOnly(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	table.exec("alter table outbox.events set (autovacuum_enabled = off)")
	t.Run("empty", func(t *testing.T) { checkPlans(t, table) })
	table.insert(200_000)
	t.Run("new, never analyzed", func(t *testing.T) { checkPlans(t, table) })
	table.exec("analyze outbox.events")
	t.Run("all pending", func(t *testing.T) { checkPlans(t, table) })
	table.exec(`update outbox.events set
		status = case when sequence < 190000 then 'PUBLISHED' when sequence % 3 = 0 then 'FAILED' else 'PUBLISHING' end,
		published_at = case when sequence < 190000 then now() end,
		available_at = case when sequence % 3 = 0 then created_at + interval '1 minute' else available_at end`)
	t.Run("statistics of an hour ago", func(t *testing.T) { checkPlans(t, table) })
	table.exec("vacuum analyze outbox.events")
	t.Run("most published", func(t *testing.T) { checkPlans(t, table) })
}

func checkPlans(t *testing.T, table *table) {
	statements, err := sql.ForSchema("outbox")
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(table.url)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range session {
		config.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	all := reflect.ValueOf(*statements)
	for i := range all.NumField() {
		name := all.Type().Field(i).Name
		if name == "Status" || name == "Relays" { // for people, now and then
			continue
		}
		for _, problem := range problems(explain(t, conn, all.Field(i).String()), "") {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

type plan struct {
	NodeType  string `json:"Node Type"`
	Relation  string `json:"Relation Name"`
	Subplan   string `json:"Subplan Name"`
	Index     string `json:"Index Name"`
	IndexCond string `json:"Index Cond"`
	Plans     []plan
}

// explain gives the generic plan, the one that force_generic_plan has every execution use.
func explain(t *testing.T, conn *pgx.Conn, statement string) plan {
	t.Helper()
	description, err := conn.Prepare(t.Context(), "described", statement)
	if err == nil {
		_, err = conn.Exec(t.Context(), "prepare p as "+statement, pgx.QueryExecModeSimpleProtocol)
	}
	if err != nil {
		t.Fatal(err)
	}
	nulls := strings.TrimSuffix(strings.Repeat("null, ", len(description.ParamOIDs)), ", ")
	var answer []byte
	err = conn.QueryRow(t.Context(), "explain (format json) execute p("+nulls+")", pgx.QueryExecModeSimpleProtocol).Scan(&answer)
	if err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal(answer, &plans); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "deallocate all"); err != nil {
		t.Fatal(err)
	}
	if err := conn.DeallocateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}

// problems lists what reads more of the table than it asks for.
func problems(p plan, subplan string) (found []string) {
	if p.Subplan != "" {
		subplan = p.Subplan
	}
	harmless := []string{"ModifyTable", "Index Scan", "Index Only Scan", "Tid Scan", "Tid Range Scan"}
	switch {
	case p.Relation == "events" && !slices.Contains(harmless, p.NodeType):
		found = append(found, p.NodeType+" of the table in "+subplan)
	case p.Relation == "events" && p.Index != "" && p.IndexCond == "":
		found = append(found, "walks all of "+p.Index+" in "+subplan)
	case p.NodeType == "Hash Join" || p.NodeType == "Merge Join":
		found = append(found, p.NodeType+" in "+subplan)
	case strings.Contains(p.NodeType, "Sort") && slices.Contains([]string{"CTE reach", "CTE fresh", "CTE due"}, subplan):
		found = append(found, "sorts the backlog in "+subplan)
	}
	for _, below := range p.Plans {
		found = append(found, problems(below, subplan)...)
	}
	return found
}
