// Package vault reads the values of secrets from their users' storage: environment, files, keyrings and helper
// programs.
package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/zalando/go-keyring"

	"github.com/unitask/unitask/internal/tail"
)

// Service is the name of unitask's own entries in a keyring.
const Service = "unitask"

// Patience is how long a keyring or a helper program may take: both may ask a person to unlock them.
const Patience = 2 * time.Minute

// Vault is a home's configuration of secrets. The zero value has none.
type Vault struct {
	// Secrets are everybody's sources of secrets, by the secrets' names. Callers are those of a shared server's callers,
	// by the caller's name; they take precedence.
	Secrets map[string]string
	Callers map[string]map[string]string
	// Helpers are programs that print a secret: the arguments, by the name that a source uses. In one of the arguments, {}
	// stands for the rest of the source.
	Helpers map[string][]string
	// Registries are the logins for registries of container images, by HOST or HOST:PORT.
	Registries map[string]Login
	// Most is the maximum length of a value, in bytes.
	Most int
}

// Login identifies a user at a registry: a name and the source of a password, or the source of a token alone.
type Login struct {
	User     string `toml:"user"`
	Password string `toml:"password"`
	Token    string `toml:"token"`
	Plain    bool   `toml:"plain"` // may be sent without TLS, too
	// Also are other hosts to which the registry may redirect, even if they are in a private network.
	Also []string `toml:"also"`
}

// Sources are the forms of a source, for messages.
const Sources = "env:VARIABLE, file:PATH, keyring:[SERVICE/]ACCOUNT or cmd:HELPER:WHAT"

var errUnset = errors.New("the environment has no")

// place stands in argument lists for the part of a source after the helper's name.
const place = "{}"

// Check returns what is wrong with the configuration.
func (v *Vault) Check() error {
	for name, argv := range v.Helpers {
		switch places := strings.Count(strings.Join(argv, "\x00"), place); {
		case len(argv) == 0:
			return fmt.Errorf("secretHelpers.%s is empty: [\"pass\", \"show\", \"%s\"] is one", name, place)
		case places != 1 || strings.Contains(argv[0], place):
			return fmt.Errorf("secretHelpers.%s must have %s in one argument: it stands for what a secret asks for", name, place)
		case strings.Contains(name, ":"):
			return fmt.Errorf("secretHelpers.%q: a name has no colon", name)
		}
	}
	check := func(table string, sources map[string]string) error {
		for name, source := range sources {
			if _, err := v.parse(source); err != nil {
				return fmt.Errorf("%s.%s: %w", table, name, err)
			}
			if path, ok := strings.CutPrefix(source, "file:"); ok && !filepath.IsAbs(path) {
				return fmt.Errorf("%s.%s: %q is relative: give the whole path", table, name, path)
			}
		}
		return nil
	}
	errs := []error{check("secrets", v.Secrets)}
	for caller, sources := range v.Callers {
		errs = append(errs, check("callerSecrets."+caller, sources))
	}
	for host, l := range v.Registries {
		switch {
		case !registry.MatchString(host):
			errs = append(errs, fmt.Errorf("registries.%.100q: use HOST or HOST:PORT, in lower case", host))
		case len(l.Also) > 0 && l.User+l.Password+l.Token == "":
		case (l.User == "") != (l.Password == "") || (l.Token == "") == (l.Password == ""):
			errs = append(errs, fmt.Errorf("registries.%q must have user and password, or token", host))
		case strings.ContainsFunc(l.User, unicode.IsControl) || strings.Contains(l.User, ":"):
			errs = append(errs, fmt.Errorf("registries.%q: %.100q can't be a user", host, l.User))
		}
		for key, source := range map[string]string{"password": l.Password, "token": l.Token} {
			if source != "" {
				errs = append(errs, check(fmt.Sprintf("registries.%q", host), map[string]string{key: source}))
			}
		}
	}
	return errors.Join(errs...)
}

// registry matches the key of a login. Host names ignore case: lower case alone prevents duplicates.
var registry = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,252}(:[0-9]{1,5})?$`)

// LoginTo reads the login for a registry, by its HOST or HOST:PORT: Password and Token contain the values. It returns
// nil if the configuration has none.
func (v *Vault) LoginTo(ctx context.Context, host string) (_ *Login, err error) {
	host = strings.ToLower(host)
	l, there := v.Registries[host]
	if hub := "docker.io"; !there && host == "index."+hub {
		l, there = v.Registries[hub]
	}
	switch {
	case !there:
		return nil, nil
	case l.User == "" && l.Password == "" && l.Token == "":
	case l.Token != "":
		l.Token, err = v.Read(ctx, l.Token)
	default:
		l.Password, err = v.Read(ctx, l.Password)
	}
	if err != nil {
		return nil, err
	}
	return &l, nil
}

// Value reads a secret for a caller, who may have several names. It uses the caller's own source, the one for
// everybody, or the environment.
func (v *Vault) Value(ctx context.Context, name string, callers ...string) (string, error) {
	for _, caller := range callers {
		if source, ok := v.Callers[caller][name]; ok {
			return v.Read(ctx, source)
		}
	}
	if source, ok := v.Secrets[name]; ok {
		return v.Read(ctx, source)
	}
	text, err := v.Read(ctx, "env:"+name)
	if err != nil && os.Getenv(name) == "" {
		err = fmt.Errorf("%w %s, or an empty one", errUnset, name)
	}
	return text, err
}

// Read reads a source. An empty value is an error: nobody would notice such a mistake.
func (v *Vault) Read(ctx context.Context, source string) (string, error) {
	read, err := v.parse(source)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("no answer within %s", Patience))
	defer cancel()
	text, err := read(ctx)
	switch {
	case errors.Is(err, errUnset):
		return "", fmt.Errorf("%w %s", err, strings.TrimPrefix(source, "env:"))
	case err != nil:
		return "", fmt.Errorf("%s: %w", source, err)
	case text == "":
		return "", fmt.Errorf("%s is empty", source)
	case len(text) > v.Most:
		return "", fmt.Errorf("%s has more than %d bytes", source, v.Most)
	case strings.Contains(text, "\x00"):
		return "", fmt.Errorf("%s has a zero byte, which no environment variable can", source)
	}
	return text, nil
}

// parse returns a function that reads a source.
func (v *Vault) parse(source string) (func(context.Context) (string, error), error) {
	kind, rest, _ := strings.Cut(source, ":")
	if rest == "" || len(rest) > 4096 || !utf8.ValidString(rest) || strings.ContainsFunc(rest, unicode.IsControl) {
		return nil, fmt.Errorf("%.100q is no source of a secret: use %s", source, Sources)
	}
	switch kind {
	case "env":
		return func(context.Context) (string, error) {
			text, ok := os.LookupEnv(rest)
			if !ok {
				return "", errUnset
			}
			return text, nil
		}, nil
	case "file":
		return func(context.Context) (string, error) { return v.file(rest) }, nil
	case "keyring":
		service, account, both := strings.Cut(rest, "/")
		if !both {
			service, account = Service, rest
		}
		return func(ctx context.Context) (string, error) { return inKeyring(ctx, service, account) }, nil
	case "cmd":
		name, what, _ := strings.Cut(rest, ":")
		argv, known := v.Helpers[name]
		switch {
		case !known:
			return nil,
				fmt.Errorf(
					"%.100q: the home's configuration has no helper %.50q: "+
						"secretHelpers.%s = [\"PROGRAM\", \"ARGUMENT\", \"%s\"] allows it", source, name, name, place)
		case what == "" || strings.HasPrefix(what, "-"):
			return nil, fmt.Errorf("%.100q: what follows cmd:%s: is what the helper is asked for, and begins with no -", source,
				name)
		}
		argv = slices.Clone(argv)
		for i := range argv[1:] {
			argv[i+1] = strings.ReplaceAll(argv[i+1], place, what)
		}
		return func(ctx context.Context) (string, error) { return v.helper(ctx, argv) }, nil
	}
	return nil, fmt.Errorf("%.100q is no source of a secret: use %s", source, Sources)
}

// file returns a file's text without the newline at its end. Reading is limited, because a device may never end.
func (v *Vault) file(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not wait for the writer of a FIFO
	if err != nil {
		return "", errors.Unwrap(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.IsDir() {
		return "", errors.New("is no file")
	}
	_ = f.SetReadDeadline(time.Now().Add(Patience)) // of a pipe, such as a shell's <(…)
	text, err := io.ReadAll(io.LimitReader(f, int64(v.Most)+3))
	return line(text), err
}

// line returns a text without the newline at its end.
func line(text []byte) string {
	return string(bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r")))
}

// inKeyring reads from Linux's Secret Service, or macOS's keychain.
func inKeyring(ctx context.Context, service, account string) (string, error) {
	type answer struct {
		text string
		err  error
	}
	came := make(chan answer, 1) // the library has no context, and a locked keyring asks a person
	go func() {
		text, err := keyring.Get(service, account)
		came <- answer{text, err}
	}()
	select {
	case a := <-came:
		if errors.Is(a.err, keyring.ErrNotFound) {
			return "", fmt.Errorf("the keyring has no %s of %s", account, service)
		}
		return a.text, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// helper returns the output of a program.
func (v *Vault) helper(ctx context.Context, argv []string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) // in our process group: it may ask on the terminal
	cmd.WaitDelay = time.Second
	out := &most{left: v.Most + 2}
	last := tail.Buffer{Size: 500}
	cmd.Stdout, cmd.Stderr = out, &last
	err := cmd.Run()
	switch {
	case context.Cause(ctx) != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", fmt.Errorf("%s: %w%s", argv[0], err, said(last.String()))
	case out.left < 0:
		return "", fmt.Errorf("%s prints more than %d bytes", argv[0], v.Most)
	}
	return line(out.text.Bytes()), nil
}

func said(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return fmt.Sprintf(": %q", text)
}

// most stores a limited number of bytes, and accepts all.
type most struct {
	text bytes.Buffer
	left int
}

func (m *most) Write(p []byte) (int, error) {
	if n := min(len(p), m.left); n > 0 {
		m.text.Write(p[:n])
	}
	m.left -= min(len(p), m.left+1)
	return len(p), nil
}
