package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := (&Log{LogLevel: "warn", LogFormat: "auto"}).Logger(&out, false)
	log.Info("too quiet to hear")
	log.Warn("late", "lag", 1500*time.Millisecond, "error", errors.New("broken"))
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("auto should be one JSON object where there is no terminal: %v\n%s", err, &out)
	}
	if line["level"] != "WARN" || line["msg"] != "late" || line["lag"] != "1.5s" || line["error"] != "broken" {
		t.Errorf("got %v", line)
	}

	out.Reset()
	log = (&Log{LogLevel: "debug", LogFormat: "text"}).Logger(&out, false)
	log.Debug("late", "lag", 1500*time.Millisecond, "error", errors.New("broken"))
	if got := out.String(); !strings.Contains(got, "DBG late lag=1.5s error=broken") || strings.Contains(got, "\x1b") {
		t.Errorf("text without a terminal has no color: %q", got)
	}
}
