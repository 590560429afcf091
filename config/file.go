package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// fileValue is a setting as the config file gives it: a string, or a []string for a list.
type fileValue struct {
	value  any
	origin string
}

// settingsByName are the settings that a config file may hold, whichever command reads it: all but config itself.
var settingsByName = sync.OnceValue(func() map[string]*kong.Flag {
	flags := map[string]*kong.Flag{}
	for _, flag := range kong.Must(&Settings{}).Model.Flags {
		if len(flag.Envs) > 0 && flag.Name != "config" {
			flags[flag.Name] = flag
		}
	}
	return flags
})

// BeforeResolve is kong's hook between reading the command line and asking for what it leaves open: the config file is
// read here.
func (*File) BeforeResolve(ctx *kong.Context, l *Loader) error {
	for _, p := range ctx.Path {
		if p.Flag != nil && p.Flag.Name == "config" {
			path, _ := ctx.FlagValue(p.Flag).(string)
			l.readFile(path)
			return nil
		}
	}
	if path, ok := l.lookupEnv(l.envs["config"]); ok {
		l.origin["config"] = inEnvironment
		l.readFile(path)
	}
	return nil
}

func (l *Loader) readFile(path string) {
	if path == "" {
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		l.Wrong("config", path, fmt.Sprintf("can't be read: %v", cause(err)))
		return
	}
	l.parseFile(path, text)
}

// cause is what the system says of a file, without the name, which stands there already.
func cause(err error) error {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// parseFile takes the settings from a YAML document. Values stay the text that stands in the file, so that they go the
// same way as those of the command line.
func (l *Loader) parseFile(path string, text []byte) {
	l.file = map[string]fileValue{}
	wrong := func(line int, format string, args ...any) {
		l.problems = append(l.problems, fmt.Sprintf("%s, line %d: ", path, line)+fmt.Sprintf(format, args...))
	}

	documents := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	if err := documents.Decode(&document); errors.Is(err, io.EOF) {
		return
	} else if err != nil {
		l.problems = append(l.problems, fmt.Sprintf("%s is not YAML: %s", path, strings.TrimPrefix(err.Error(), "yaml: ")))
		return
	}
	if err := documents.Decode(&second); !errors.Is(err, io.EOF) {
		l.problems = append(l.problems, path+" holds more than one YAML document; put all settings into one")
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return
	}
	if root.Kind != yaml.MappingNode {
		wrong(root.Line, `settings are written one a line, as in "scan-interval: 5s"`)
		return
	}

	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		name := key.Value
		if first, ok := seen[name]; ok {
			wrong(key.Line, "%s stands twice, first in line %d", shown(name), first)
			continue
		}
		seen[name] = key.Line

		flag := settingsByName()[name]
		if flag == nil {
			hint := ""
			if dashed := strings.ReplaceAll(name, "_", "-"); settingsByName()[dashed] != nil {
				hint = "; write " + dashed
			}
			wrong(key.Line, "there is no setting %s%s", shown(name), hint)
			continue
		}
		value, err := textOf(node, flag.IsSlice())
		if err != nil {
			wrong(key.Line, "%s %v", l.name(name), err)
			l.wrong[name] = true
			continue
		}
		l.file[name] = fileValue{value: value, origin: fmt.Sprintf("in %s, line %d", path, key.Line)}
	}
}

// textOf gives a node's text, or its texts if it is a list and may be one.
func textOf(node *yaml.Node, list bool) (any, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch {
	case node.Kind == yaml.SequenceNode && list:
		texts := make([]string, 0, len(node.Content))
		for _, item := range node.Content {
			text, err := textOf(item, false)
			if err != nil {
				return nil, err
			}
			texts = append(texts, text.(string))
		}
		return texts, nil
	case node.Kind != yaml.ScalarNode:
		return nil, errors.New("takes a single value")
	case node.ShortTag() == "!!null":
		return nil, errors.New(`has no value; remove the line, or write "" if it is to be empty`)
	}
	return node.Value, nil
}
