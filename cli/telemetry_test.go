package cli_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/collector"
	"github.com/unitask/unitask/internal/telemetry"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
)

// ran runs the program with an extra environment; it returns the output.
func ran(t *testing.T, home string, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "unitask", args...)
	cmd.Env = append(os.Environ(), append(env, "UNITASK_HOME="+home)...)
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	_ = cmd.Run()
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
)

// A run is one trace, in its caller's trace, from call to exit, and its numbers are metrics. No input of the run is
// sent.
func TestTelemetry(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	home := testhome.New(t, base)
	c := collector.New(t)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_EXPORTER_OTLP_HEADERS=api-key=header-0123456789",
		"TRACEPARENT=00-" + callersTrace + "-" + callersSpan + "-01",
		"KEY=key-0123456789"}
	private := []string{"key-0123456789", "header-0123456789", "argument-0123456789", "variable-0123456789",
		"printed-0123456789", "code-0123456789", home}
	stdout, stderr, code := ran(t, home, env, "run", "--kernel", "linux", "--secret", "KEY", "--env",
		"V=variable-0123456789",
		"--code",
		"/* code-0123456789 */ console.log('printed-0123456789'); require('fs').writeFileSync('/out/f', process.env.KEY); "+
			"process.exit(3)", "--", "argument-0123456789")
	if stdout != "printed-0123456789\n" || !strings.HasPrefix(stderr, "unitask: in /out: f\n") ||
		strings.Count(stderr, "\n") != 2 || code != 3 {
		t.Fatalf("%d %q %q", code, stdout, stderr)
	}
	got := c.Text()
	for _, want := range []string{
		`resource service.name=unitask\n`, `resource has service.version\n`,
		`span run of ` + callersSpan + ` in ` + callersTrace +
			`: STATUS_CODE_UNSET .*process.exit.code=3 .*unitask.kernel=linux unitask.kind=run .*unitask.outcome=exited ` +
			`unitask.run.id=\S+ .*unitask.via=cli\n`,
		`span prepare of run in ` + callersTrace, `span image of run in `, `span boot of run in `, `span connect of run in `,
		`span code of run in `, `span collect of run in `, `span record of run in `,
		`metric unitask.runs = 1 .*unitask.outcome=exited`, `metric unitask.runs.active = 0 `,
		`metric unitask.run.duration of 1 `, `metric unitask.run.phase.duration of 1 unitask.phase=code\n`,
	} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, text := range private {
		seen := "nothing of it"
		if bytes.Contains(c.Raw(), []byte(text)) {
			seen = text
		}
		attack.Check(t, "in spans and metrics: "+strings.ReplaceAll(text, home, "the home"), "nothing of it", seen)
	}
	for _, s := range c.Spans() {
		if s.EndTimeUnixNano < s.StartTimeUnixNano || s.EndTimeUnixNano == 0 {
			t.Errorf("%s ends before it begins", s.Name)
		}
	}
}

// A failed or refused run is a trace too, without the messages.
func TestTelemetryFailed(t *testing.T) {
	for name, row := range map[string]struct {
		args []string
		want string
	}{
		"refused": {
			args: []string{"run", "--code", "1", "--memory", "7M"},
			want: `span run of \S* in \S+: STATUS_CODE_ERROR error.type=refused unitask.kind=run unitask.outcome=refused ` +
				`unitask.via=cli\n`,
		},
		"failed": {
			args: []string{"run", "--offline", "--kernel", "linux", "--code", "1"},
			want: `span image of run in \S+: STATUS_CODE_ERROR error.type=image\n(?s:.*)span run of \S* in \S+: ` +
				`STATUS_CODE_ERROR error.type=failed .*unitask.outcome=failed`,
		},
	} {
		c := collector.New(t)
		if _, stderr, code := ran(t, testdir.Private(t), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL},
			row.args...); code == 0 {
			t.Errorf("%s: %q", name, stderr)
		}
		if got := c.Text(); !regexp.MustCompile(row.want).MatchString(got) {
			t.Errorf("%s: no %q in\n%s", name, row.want, got)
		}
	}
}

// A hanging collector delays a command only for the documented time, and has no other effect.
func TestAttackTelemetryHangs(t *testing.T) {
	hs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer hs.Close()
	args := []string{"run", "--code", "1", "--memory", "7M"}
	home := testdir.Private(t)
	_, stderr, code := ran(t, home, nil, args...)
	begin := time.Now()
	_, late, again := ran(t, home, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + hs.URL}, args...)
	got := "the same, and a line"
	switch took := time.Since(begin); {
	case took > telemetry.Patience+20*time.Second:
		got = "waited for " + took.String()
	case code != again || !strings.HasPrefix(late, stderr) || strings.Count(late, "\n") != strings.Count(stderr, "\n")+1:
		got = late
	}
	attack.Check(t, "a collector that hangs, at a command's end", "the same, and a line", got)
}
