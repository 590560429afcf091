package publisher

import (
	"fmt"
	"strings"
	"text/template"

	"github.com/outbox-relay/outbox-relay/event"
)

const defaultRoutingKey = "{{.EventType}}"

// A route gives the routing key of an event that names none itself. Safe for concurrent use.
type route func(*event.Event) (string, error)

// routeData is what a routing key template sees.
type routeData struct {
	EventType, AggregateType, AggregateID, ID string
	Sequence                                  int64
}

// compileRoute parses a routing key template. The default one and a plain text need no template at run time.
func compileRoute(text string) (route, error) {
	switch {
	case text == "" || strings.ReplaceAll(text, " ", "") == defaultRoutingKey:
		return func(e *event.Event) (string, error) { return e.Type, nil }, nil
	case !strings.Contains(text, "{{"):
		return func(*event.Event) (string, error) { return text, nil }, nil
	}
	t, err := template.New("routing key").Parse(text)
	if err != nil {
		return nil, err
	}
	byTemplate := func(e *event.Event) (string, error) {
		var key strings.Builder
		err := t.Execute(&key, routeData{e.Type, e.AggregateType, e.AggregateID, e.ID.String(), e.Sequence})
		if err != nil {
			return "", fmt.Errorf("the routing key template fails on it: %w", err)
		}
		return key.String(), nil
	}
	// A field that does not exist shows only at execution. Other errors may be the made-up event's fault.
	sample := &event.Event{Type: "order.created", AggregateType: "order", AggregateID: "1", Sequence: 1}
	if _, err := byTemplate(sample); err != nil && strings.Contains(err.Error(), "can't evaluate field") {
		return nil, fmt.Errorf("%w (there are EventType, AggregateType, AggregateID, ID and Sequence)", err)
	}
	return byTemplate, nil
}
