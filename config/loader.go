package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Error is everything that is wrong with the settings, one line each, free of passwords.
type Error struct {
	Problems []string
}

// Error gives the problems, one a line.
func (e *Error) Error() string { return strings.Join(e.Problems, "\n") }

// A Loader fills in one command line's settings: it knows where each value came from and collects what is wrong. It
// serves a single parse, on one goroutine.
type Loader struct {
	lookupEnv func(string) (string, bool)
	file      map[string]fileValue
	envs      map[string]string // flag's name to its variable
	origin    map[string]string // flag's name to where its value came from; none: the command line
	wrong     map[string]bool   // flags that were reported
	problems  []string
}

const onCommandLine, inEnvironment, byDefault = "on the command line", "in the environment", "by default"

// NewLoader returns a Loader that reads the environment through lookupEnv, which is [os.LookupEnv] or like it.
func NewLoader(lookupEnv func(string) (string, bool)) *Loader {
	return &Loader{
		lookupEnv: lookupEnv,
		envs:      map[string]string{},
		origin:    map[string]string{},
		wrong:     map[string]bool{},
	}
}

// Parser returns a kong parser for the commands in cli. After its Parse, whether that failed or not, [Loader.Err] has the
// wrong settings.
//
// Kong by itself stops at the first wrong value, and lets a resolver's value (the file) win over the environment. So here
// the Loader is the only resolver and looks into the environment first, and its mappers note what is wrong and go on.
func (l *Loader) Parser(cli any, options ...kong.Option) (*kong.Kong, error) {
	options = append([]kong.Option{
		kong.Bind(l),
		kong.Resolvers(l),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), mapper(l, time.ParseDuration,
			"write a number and a unit, such as 500ms, 5s or 72h")),
		kong.KindMapper(reflect.Int, mapper(l, strconv.Atoi, "write a whole number, such as 20")),
		kong.KindMapper(reflect.String, mapper(l, func(text string) (string, error) { return text, nil }, "")),
		kong.NamedMapper("urls", kong.MapperFunc(decodeURLs)),
		kong.ValueFormatter(helpText),
	}, options...)
	parser, err := kong.New(cli, options...)
	if err != nil {
		return nil, err
	}
	return parser, kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && len(flag.Envs) > 0 {
			l.envs[flag.Name] = flag.Envs[0]
			flag.Tag.Envs = nil // or kong reads the process's environment on its own
		}
		return next(nil)
	})
}

// Err returns an *[Error] with all that was found wrong, or nil.
func (l *Loader) Err() error {
	if len(l.problems) == 0 {
		return nil
	}
	return &Error{Problems: l.problems}
}

// Wrong notes that the value of a flag is not right. The sentence reads "--flag (VARIABLE) is value, <origin>: right"; of
// a flag that was reported already it is dropped. Passwords in value are masked, right must hold none.
func (l *Loader) Wrong(flag string, value any, right string) {
	if l.wrong[flag] {
		return
	}
	l.wrong[flag] = true
	l.problems = append(l.problems, fmt.Sprintf("%s is %s, %s: %s", l.name(flag), shown(value), l.from(flag), right))
}

// OneOf notes a problem unless value is one of the choices.
func (l *Loader) OneOf(flag, value string, choices ...string) {
	for _, c := range choices {
		if value == c {
			return
		}
	}
	last := len(choices) - 1
	l.Wrong(flag, value, "must be "+strings.Join(choices[:last], ", ")+" or "+choices[last])
}

func (l *Loader) name(flag string) string {
	if env := l.envs[flag]; env != "" {
		return fmt.Sprintf("--%s (%s)", flag, env)
	}
	return "--" + flag
}

func (l *Loader) from(flag string) string {
	if origin, ok := l.origin[flag]; ok {
		return origin
	}
	return onCommandLine
}

// Resolve makes the Loader a [kong.Resolver]: kong asks for each flag that the command line does not give.
func (l *Loader) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, env := range flag.Envs {
		if value, ok := l.lookupEnv(env); ok {
			l.origin[flag.Name] = inEnvironment
			return value, nil
		}
	}
	if v, ok := l.file[flag.Name]; ok {
		l.origin[flag.Name] = v.origin
		return v.value, nil
	}
	l.origin[flag.Name] = byDefault
	return nil, nil
}

// Validate makes the Loader a [kong.Resolver].
func (l *Loader) Validate(*kong.Application) error { return nil }

// mapper decodes a flag's text by parse. What parse refuses is noted and left zero, so that kong goes on to the next flag.
func mapper[T any](l *Loader, parse func(text string) (T, error), right string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		token, err := ctx.Scan.PopValue(ctx.Value.Name)
		if err != nil {
			return err
		}
		text := token.String()
		value, err := parse(text)
		if err != nil {
			l.Wrong(ctx.Value.Name, text, right)
			return nil
		}
		target.Set(reflect.ValueOf(value).Convert(target.Type()))
		return nil
	}
}

// decodeURLs takes a list from the config file, or a text of several URLs. A comma parts two URLs only where a new scheme
// begins after it: a password may have commas too.
func decodeURLs(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue(ctx.Value.Name)
	if err != nil {
		return err
	}
	urls, ok := token.Value.([]string)
	if !ok {
		urls = splitURLs(token.String())
	}
	target.Set(reflect.AppendSlice(target, reflect.ValueOf(urls)))
	return nil
}

// helpText adds a value's default and environment variable to its help.
func helpText(value *kong.Value) string {
	var notes []string
	if value.HasDefault {
		notes = append(notes, "default "+value.Default)
	}
	if value.Flag != nil && len(value.Flag.Envs) > 0 {
		notes = append(notes, "$"+value.Flag.Envs[0])
	}
	if len(notes) == 0 {
		return value.Help
	}
	return fmt.Sprintf("%s (%s)", value.Help, strings.Join(notes, ", "))
}
