package config

import (
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// Logger writes to w at the level and in the format that the settings say: colored text if w is a terminal, unless
// noColor (the variable NO_COLOR is set, https://no-color.org); else one JSON object a line. Durations are texts with a
// unit in both.
func (g *Log) Logger(w io.Writer, noColor bool) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.LogLevel)); err != nil {
		level = slog.LevelInfo
	}
	terminal := isTerminal(w)
	if g.LogFormat == "json" || g.LogFormat != "text" && !terminal {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: durationAsText}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{
		Level:       level,
		NoColor:     noColor || !terminal,
		TimeFormat:  "15:04:05.000",
		ReplaceAttr: errorInRed,
	}))
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func errorInRed(_ []string, a slog.Attr) slog.Attr {
	if _, ok := a.Value.Any().(error); ok {
		const brightRed = 9
		return tint.Attr(brightRed, a)
	}
	return a
}
