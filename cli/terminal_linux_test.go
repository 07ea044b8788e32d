package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// onTerminal gives do a pseudo-terminal (pty(7)) and returns the data at its other end.
func onTerminal(t *testing.T, do func(tty *os.File)) string {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	defer ptmx.Close()
	all := make(chan string)
	go func() {
		text, _ := io.ReadAll(ptmx) // EIO when the other end is closed
		all <- string(text)
	}()
	do(tty)
	tty.Close()
	return strings.ReplaceAll(<-all, "\r\n", "\n") // the terminal makes these from

}

const hostile = "a\x1b]52;c;eA==\a\x1b[2J\u009b2J\x1b[31mred"

func TestAttackTerminalRun(t *testing.T) {
	home := bootingHome(t)
	const code = `process.stdout.write("a\x1b]52;c;eA==\x07\x1b[2J\u009b2J\x1b[31mred")`
	for flag, want := range map[string]string{"--cold=false": `a\x1b]52;c;eA==\x07\x1b[2J\u009b2J` + "\x1b[31mred\x1b[0m",
		"--raw": hostile} {
		got := onTerminal(t, func(tty *os.File) {
			if code := Main([]string{"run", "--home", home, flag, "--code", code},
				Streams{Stdin: strings.NewReader(""), Stdout: tty, Stderr: io.Discard}); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
		attack.Check(t, "run on a terminal, "+flag, want, got)
	}
}

// A record in which every text is hostile sends nothing but text to a terminal.
func TestAttackTerminalInspect(t *testing.T) {
	home := testdir.Private(t)
	r, err := record.Open(home+"/runs").Create(time.Now(), "", "", "code.js", []byte("// "+hostile+"\n"),
		map[string]any{"args": []string{hostile, "\u009b2J\x7f"}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(r.Stdout(), hostile+"\n")
	r.Netlog(map[string]string{"proto": hostile, "name": hostile, "reason": hostile, "rule": hostile})
	r.Error, r.Status = hostile, record.Failed
	r.Machine = &record.Machine{Node: hostile, Jail: []byte(`"\u001b[2J\u009b2J"`)}
	r.Denials = []byte(`[{"field":"files","requested":"\u009b2J","reason":"\u001b[2J"}]`)
	r.Drops = []byte(`{"\u001b[2J":1}`)
	r.Result = []byte(
		`{"outcome":"\u001b[2J","artifacts":[{"path":"\u001b[2J","mode":"\u001b[2J","sha256":"\u009b"}],` +
			`"artifactsRefused":[{"path":"\u001b[2J","reason":"\u009b2J"}],"artifactsLeft":[{"path":"\u001b[2J",` +
			`"reason":"\u009b2J"}]}`)
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"inspect", "last"}, {"inspect", "last", "--json"}, {"runs", "ls"},
		{"runs", "ls", "--json"}, {"inspect", hostile}, {hostile}, {"run", "--code", "1", "--timeout", hostile}} {
		got := onTerminal(t, func(tty *os.File) {
			Main(append(args, "--home", home), Streams{Stdin: strings.NewReader(""), Stdout: tty, Stderr: tty})
		})
		got = strings.ReplaceAll(got, "\x1b[0munitask: ", "unitask: ") // the beginning of each message of ours
		saw := "text"
		if i := strings.IndexFunc(got, func(r rune) bool { return isControl(r) && r != '\n' && r != '\t' }); i >= 0 ||
			got == "" {
			saw = got[max(i-20, 0):]
		}
		attack.Check(t, fmt.Sprintf("on a terminal: %.40q", args), "text", saw)
	}
}

// Standard input goes to the code, unless it is a terminal, or can't be read, as with nohup.
func TestGivenInput(t *testing.T) {
	null := func(flag int) *os.File {
		f, err := os.OpenFile(os.DevNull, flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	closed := null(os.O_RDONLY)
	closed.Close()
	for name, c := range map[string]struct {
		in   io.Reader
		want bool
	}{"a reader": {strings.NewReader(""), true}, "a file": {null(os.O_RDONLY), true},
		"one to read and write": {null(os.O_RDWR), true}, "one to write": {null(os.O_WRONLY), false},
		"one that is closed": {closed, false}} {
		if got := isGiven(c.in); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	onTerminal(t, func(tty *os.File) {
		if isGiven(tty) {
			t.Error("a terminal's is passed on")
		}
	})
}
