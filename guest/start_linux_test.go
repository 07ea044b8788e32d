package guest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/socketpair"
	"github.com/unitask/unitask/internal/testsignals"
)

// The program that waits for a start (start/start.c) on this host, compiled with the sanitizers. It is in the shell's
// program, which becomes this host's bash.

// waiting compiles it once for a test.
func waiting(t *testing.T) string {
	t.Helper()
	for _, need := range []string{"gcc", "/usr/bin/bash"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("needs %s", need)
		}
	}
	program := filepath.Join(t.TempDir(), "start")
	if out, err := exec.Command("gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", "-o", program,
		"shell/program/shell.c", "start/start.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// told starts it and sends it frames; it returns its control words, its output and its exit code.
func told(t *testing.T, program string, frames ...[]byte) (words, printed string, code int) {
	t.Helper()
	testsignals.Default(t)
	ours, theirs, err := socketpair.New("ctl")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	cmd := exec.Command(program)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = []string{"ASAN_OPTIONS=detect_leaks=0:exitcode=99", "PATH=/usr/bin:/bin"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	word := make([]byte, 1)
	for i := 0; ; i++ {
		if n, err := ours.Read(word); n == 0 || err != nil {
			break
		}
		if words += string(word); i < len(frames) {
			_, _ = ours.Write(frames[i])
			if i == len(frames)-1 { // the agent has no more to send
				_ = syscall.Shutdown(int(ours.Fd()), syscall.SHUT_WR)
			}
		}
	}
	_ = cmd.Wait()
	return words, out.String(), cmd.ProcessState.ExitCode()
}

func controlFrame(text []byte) []byte {
	return append(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), contract.FrameStart), text...)
}

// startOf returns the frame of a start, as Conn sends it.
func startOf(t *testing.T, s Start, rehearsal string) []byte {
	t.Helper()
	text, err := startFrame(s, rehearsal)
	if err != nil {
		t.Fatal(err)
	}
	return controlFrame(text)
}

func TestStartIsTaken(t *testing.T) {
	program := waiting(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "script.sh")
	if err := os.WriteFile(script,
		[]byte(`printf '<%s>' "$0" "$@" "$PWD" "$A" "${B-unset}" "${PATH-unset}"; trap; exit 7`), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"", "two words", "ünï 日本 \U0001f600", "\"\\/\b\f\n\r\t\x01\x7f", "\u2028<&>",
		strings.Repeat("x", 100000)}
	s := Start{Argv: append([]string{script}, args...), Env: map[string]string{"A": "=x=\"", "PATH": "/p"}, Dir: dir,
		ReadOnly: []string{"/a"}, Flags: []string{"--norc"}}
	throw := t.TempDir()
	rehearsed := filepath.Join(throw, "r")
	if err := os.Mkdir(rehearsed, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rehearsed+"/main", []byte("echo rehearsed"), 0o644); err != nil {
		t.Fatal(err)
	}
	words, printed, code := told(t, program, startOf(t, Start{Argv: []string{rehearsed + "/main"}, Dir: rehearsed},
		"last"), startOf(t, s, ""))
	want := "rehearsed\n"
	for _, a := range append(append([]string{script}, args...), dir, "=x=\"", "unset", "/p") {
		want += "<" + a + ">"
	}
	if words != "RWS" || printed != want || code != 7 {
		t.Errorf("%s, exit %d, %.2000q, want %.2000q", words, code, printed, want)
	}
	if _, err := os.Stat(rehearsed); err == nil {
		t.Error("the rehearsal's folder is still there")
	}
}

// An invalid start is not accepted, and nothing runs.
func TestAttackStart(t *testing.T) {
	program := waiting(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "script.sh")
	if err := os.WriteFile(script, []byte("echo ran"), 0o644); err != nil {
		t.Fatal(err)
	}
	entropy := hex.EncodeToString(make([]byte, contract.EntropySize))
	whole := fmt.Sprintf(`{"argv":[%q],"env":{},"cwd":%q,"entropy":%q}`, script, dir, entropy)
	if !json.Valid([]byte(whole)) {
		t.Fatal(whole)
	}
	if words, printed, code := told(t, program, controlFrame([]byte(whole))); words != "RS" || printed != "ran\n" ||
		code != 0 {
		t.Fatalf("%s %q %d", words, printed, code)
	}
	without := func(old, new string) []byte { return controlFrame([]byte(strings.Replace(whole, old, new, 1))) }
	cases := map[string][]byte{
		"the agent is gone":        {},
		"half a frame":             controlFrame([]byte(whole))[:3],
		"another frame":            append([]byte{0, 0, 0, 0, contract.FrameStdin}, 0),
		"a frame that is too long": {0x7f, 0xff, 0xff, 0xff, contract.FrameStart},
		"nothing":                  controlFrame(nil),
		"no object":                controlFrame([]byte("[]")),
		"no entropy":               without(entropy, ""),
		"half the entropy":         without(entropy, entropy[2:]),
		"no digits":                without(entropy, "zz"+entropy[2:]),
		"no arguments":             without(fmt.Sprintf("[%q]", script), "[]"),
		"no folder":                without("cwd", "dwc"),
		"a number":                 without("{}", "1"),
		"variables as a list":      without("{}", `["A"]`),
		"arguments as an object":   without("[", `{"a":"b"},"argv":[`),
		"a NUL":                    without("{}", `{"A":"\u0000"}`),
		"half a character":         without("{}", `{"A":"\ud83d"}`),
		"a bad escape":             without("{}", `{"A":"\x"}`),
		"a value without a name":   without("{}", `{"A"}`),
	}
	for n := 0; n < len(whole); n += 7 { // wherever it ends
		cases[fmt.Sprintf("the first %d bytes", n)] = controlFrame([]byte(whole[:n]))
	}
	for name, frame := range cases {
		words, printed, code := told(t, program, frame)
		if strings.Contains(printed, "ran") {
			words += " and ran"
		}
		attack.Check(t, "a start frame: "+name, fmt.Sprintf("R, exit %d", contract.ExitUnknown),
			fmt.Sprintf("%s, exit %d", words, code))
	}
}
