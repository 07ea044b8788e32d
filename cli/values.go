package cli

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// size is a flag's amount of memory or bytes. A plain number counts units; K, M, G and T, with or without B or
// iB, are powers of 1024, as in QEMU and Docker.
type size struct {
	n    int64 // in units, rounded up
	unit int64 // in bytes
	text string
}

var sizeForm = regexp.MustCompile(`^(?i)(-?[0-9]+(?:\.[0-9]+)?) ?(?:([kmgt])(?:i?b)?|(b))?$`)

func (s *size) Set(text string) error {
	m := sizeForm.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return errors.New("use a number, or one with a unit, as 512M or 2GiB")
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return errors.New("is too large")
	}
	switch {
	case m[2] != "":
		n *= math.Pow(1024, float64(1+strings.Index("kmgt", strings.ToLower(m[2])))) / float64(s.unit)
	case m[3] != "":
		n /= float64(s.unit)
	}
	if n = math.Ceil(n); math.Abs(n) >= 1<<62 {
		return errors.New("is too large")
	}
	s.n, s.text = int64(n), text
	return nil
}

func (s *size) String() string { return s.text }
func (s *size) Type() string   { return "size" }

// sizeVar adds a flag for a size, which is 0 by default.
func sizeVar(fl *pflag.FlagSet, name string, unit int64, usage string) *size {
	s := &size{unit: unit}
	fl.Var(s, name, usage)
	return s
}

// sizeText returns a number of bytes in the flag's form.
func sizeText(bytes int64) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{30, "GiB"}, {20, "MiB"}} {
		if n := bytes >> u.shift; n > 0 && n<<u.shift == bytes {
			return strconv.FormatInt(n, 10) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10)
}

// otherFlags are the flags for fields of a request that no policy decides.
var otherFlags = map[string]string{"args": "", "env": "env", "nodeArgs": "node-arg", "dirMax": "dir-max", "ca": "ca",
	"arch": "arch", "accel": "accel", "language": "lang", "exec": "exec", "sessionLifeSeconds": "life",
	"sessionIdleSeconds": "idle"}

// flagOf returns the flag for a field of a request by its name or key, nil if there is none.
func flagOf(cmd *cobra.Command, field string) *pflag.Flag {
	name := otherFlags[field]
	for _, f := range policy.Fields {
		if field == f.Key || field == f.Name {
			name = f.Flag
		}
	}
	if name == "" {
		return nil
	}
	return cmd.Flags().Lookup(name)
}

// reworded is an error with another text.
type reworded struct {
	text string
	error
}

func (r reworded) Error() string { return r.text }
func (r reworded) Unwrap() error { return r.error }

// asFlags rewrites an error about a request's field in terms of its flags.
func asFlags(cmd *cobra.Command, err error) error {
	var field *policy.FieldError
	if !errors.As(err, &field) {
		return err
	}
	named := err
	flag := flagOf(cmd, field.Field)
	if flag != nil {
		value := field.Value
		if flag.Changed && (flag.Value.Type() == "size" || flag.Value.Type() == "string" || flag.Value.Type() == "duration") {
			value = flag.Value.String()
		}
		named = reworded{fmt.Sprintf("%s--%s %s: %s", ofDefaults(flag), flag.Name, value,
			field.Reason+inUnits(flag, field.Reason)), err}
	}
	if flag != nil && flag.Name == "image" && !strings.Contains(field.Reason, "did you mean") {
		if like := language.Nearest(flag.Value.String(), language.Images()); like != "" {
			named = reworded{named.Error() + like, err}
		}
	}
	switch {
	case len(field.Would) > 0:
		return hint(named, settings(cmd, field.Would)+" would do")
	case field.Field == "dirs" && strings.Contains(field.Reason, "--file"):
		return hint(named, "--file "+unquoted(field.Value))
	case field.Field == "files" && strings.Contains(field.Reason, "--dir"):
		return hint(named, "--dir "+unquoted(field.Value))
	}
	return named
}

// ofDefaults names the file whose [defaults] set a flag, before the flag.
func ofDefaults(flag *pflag.Flag) string {
	if file := flag.Annotations[byDefault]; len(file) > 0 {
		return safe(file[0]) + ": [defaults] "
	}
	return ""
}

// inUnits appends the unit of its bounds to a reason, if the flag's plain numbers have a unit.
func inUnits(flag *pflag.Flag, reason string) string {
	if !strings.HasPrefix(reason, "must be from") {
		return ""
	}
	s, isSize := flag.Value.(*size)
	switch {
	case isSize && s.unit == 1<<20:
		return " MiB"
	case isSize:
		return " bytes"
	case valueName(flag) == "DURATION":
		return " seconds"
	}
	return ""
}

// settings returns the flags that set these fields.
func settings(cmd *cobra.Command, values map[string]int64) string {
	var texts []string
	for _, key := range []string{"dirMax", "memoryMb"} {
		if n, ok := values[key]; ok {
			if s, isSize := flagOf(cmd, key).Value.(*size); isSize {
				n *= s.unit
			}
			texts = append(texts, "--"+flagOf(cmd, key).Name+" "+sizeText(n))
		}
	}
	return strings.Join(texts, " ")
}

func unquoted(s string) string {
	if plain, err := strconv.Unquote(s); err == nil {
		return safe(plain)
	}
	return s
}

// valueForms describe the values of the library's flag types.
var valueForms = map[string]string{"int": "use a whole number", "duration": "use a duration like 30s or 2m",
	"bool": "use true or false"}

// flagError describes what is wrong with a flag.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		form := valueForms[bad.GetFlag().Value.Type()]
		if form == "" {
			form = bad.Unwrap().Error()
		}
		err = fmt.Errorf("--%s %q: %s", bad.GetFlag().Name, bad.GetValue(), form)
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		err = fmt.Errorf("%w%s", err, language.Nearest("--"+unknown.GetSpecifiedName(), names))
	}
	return hint(usage(err), cmd.CommandPath()+" --help")
}
