package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// This file prints. The rules for messages:
//
//   - stdout belongs to the answer: the code's own output, a table, JSON.
//     Everything else goes to stderr.
//   - A message begins with "unitask: ", has one line, and names what it is about.
//   - An error has a remedy, on a separate line that begins with "  hint: ".
//   - Control characters are shown, and not sent to a terminal (terminal.go): all text may quote a guest, a file
//     that others wrote, or a server.
//   - On a terminal a message begins with a colour reset: the code may have left colours that hide it.
//   - Progress is one line on a terminal, which is replaced and finally removed; without a terminal it is not shown.
//   - Nothing is printed about expected events, unless -v asks for it.

type ui struct {
	std Streams
	tty bool // stderr is a terminal that obeys control sequences

	coloured bool // the code may print colours even if the user wants none: -t, --raw
	started  bool // the code runs, and may print
	progress progressLine
}

func newUI(std Streams) *ui {
	return &ui{std: std, tty: isTerminal(std.Stderr) && !isDumb(),
		progress: progressLine{out: std.Stderr, columns: func() int { return columnsOf(std.Stderr) }}}
}

// isDumb reports whether terminals here obey no control sequences.
func isDumb() bool { return os.Getenv("TERM") == "dumb" }

// noColors reports whether the user wants no colours (no-color.org), or the terminal has none.
func noColors() bool { return os.Getenv("NO_COLOR") != "" || isDumb() }

// hinted is an error with a remedy.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

func hint(err error, what string) error { return hinted{err, what} }

func (u *ui) note(format string, args ...any) {
	u.clear()
	fmt.Fprintf(u.std.Stderr, "%sunitask: %s\n", u.plain(), visible(fmt.Sprintf(format, args...)))
}

// alarm prints a note in red, for a person who is about to decide.
func (u *ui) alarm(format string, args ...any) {
	u.clear()
	red, end := "", ""
	if u.tty && !noColors() {
		red, end = "\x1b[31m", "\x1b[0m"
	}
	fmt.Fprintf(u.std.Stderr, "%sunitask: %s%s%s\n", u.plain(), red, visible(fmt.Sprintf(format, args...)), end)
}

// plain returns the sequence that ends colours, for a terminal that may show some.
func (u *ui) plain() string {
	if u.tty && (u.coloured || !noColors()) {
		return "\x1b[0m"
	}
	return ""
}

// far shows the progress of an activity.
func (u *ui) far(what string) {
	if u.tty {
		u.progress.set("unitask: " + what)
	}
}

// doing announces an activity: on a terminal, in a line that is removed at the end. A text whose first word does not
// end in -ing describes a completed activity.
func (u *ui) doing(what string) {
	first, _, _ := strings.Cut(what, " ")
	if u.tty && !u.started && strings.HasSuffix(first, "ing") {
		u.progress.begin(what)
		return
	}
	u.note("%s", what)
}

// clear removes the line of far or doing.
func (u *ui) clear() { u.progress.end() }

func (u *ui) fail(err error) {
	if several, ok := err.(severalErrors); ok {
		for _, e := range several {
			u.fail(e)
		}
		return
	}
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	u.note("%s", lines[0])
	for _, l := range lines[1:] {
		fmt.Fprintf(u.std.Stderr, "  %s\n", visibleLine(l))
	}
	var guest *unitask.GuestError
	if errors.As(err, &guest) && guest.Console != "" {
		fmt.Fprintf(u.std.Stderr, "  console:\n")
		for line := range strings.Lines(guest.Console) {
			fmt.Fprintf(u.std.Stderr, "    %s\n", visibleLine(strings.TrimRight(line, "\r\n")))
		}
	}
	var h hinted
	if errors.As(err, &h) {
		u.hint(h.hint)
	}
}

// hints prints a result's hints.
func (u *ui) hints(res *unitask.Result) {
	for _, h := range res.ShownHints() {
		u.hint(h.Text)
	}
}

// hint prints a remedy on a separate line.
func (u *ui) hint(what string) { fmt.Fprintf(u.std.Stderr, "  hint: %s\n", visible(what)) }

// event returns the sink for a run's events.
func (u *ui) event(verbose bool) func(unitask.Event) {
	return func(e unitask.Event) {
		switch e.Kind {
		case unitask.EventImage:
			u.doing(e.Message)
		case unitask.EventTransfer:
			u.progress.have(e.Done, e.Total)
		case unitask.EventRetry, unitask.EventFallback, unitask.EventCapture, unitask.EventNetwork,
			unitask.EventStore, unitask.EventJail, unitask.EventKept:
			u.note("%s", e.Message)
		case unitask.EventFiles:
			u.far(e.Message)
		case unitask.EventStarted:
			u.clear()
			u.started = true
		case unitask.EventAccel:
			if verbose {
				u.note("accelerator %s", e.Message)
			}
		case unitask.EventRecord:
			if verbose {
				u.note("run %s", e.Message)
			}
		}
	}
}

func (u *ui) json(v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	u.clear()
	_, err := u.std.Stdout.Write(visibleJSON(text.Bytes()))
	return err
}

// safe returns a name that somebody else chose. It is in quotes if it has control or other unprintable characters, so
// that it can neither forge a line nor look like another name.
func safe(s string) string {
	odd := func(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) || isControl(r) }
	if strings.ContainsFunc(s, odd) || strings.HasPrefix(s, `"`) {
		return visibleLine(strconv.Quote(s))
	}
	return s
}

// denial returns one line about a denied request: the flag, and the line of the ceiling.
func denial(d policy.Denial) string {
	name := cmp.Or(policy.FlagOf(d.Field), d.Field)
	if d.Rule == "" {
		d.Requested = safe(d.Requested)
		return d.String()
	}
	at := safe(d.Rule)
	if d.Line > 0 {
		at = fmt.Sprintf("%s, line %d", at, d.Line)
	}
	return fmt.Sprintf("%s %s: %s by %s in %s", name, safe(d.Requested), d.Reason, d.Key, at)
}

// sign returns a check's result, without colour.
func sign(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAIL"
}

// check prints the result of a check, its name and the details. On a terminal with colours, the result is green or red.
func (u *ui) check(sign, name, format string, args ...any) {
	const signs, names = 5, 9 // the width of these columns
	u.clear()
	shown := sign
	if colour := map[string]string{"ok": "32", "FAIL": "31"}[sign]; colour != "" &&
		colors(u.std.Stdout, os.Getenv) != "" {
		shown = "\x1b[" + colour + "m" + sign + "\x1b[0m"
	}
	fmt.Fprint(u.std.Stdout, shown, strings.Repeat(" ", max(signs-len(sign), 1)))
	name += strings.Repeat(" ", max(names-len(name), 1))
	text := visible(fmt.Sprintf(format, args...))
	fmt.Fprint(u.std.Stdout, name)
	writeWrapped(u.std.Stdout, text, columnsOf(u.std.Stdout), signs+names)
}
