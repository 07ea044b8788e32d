package unitask_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testarchive"
)

// Programs in Go that try to change the compilation of later ones, or use memory or the compiler's time without end.
// Each ends as other programs do.
func TestGoAttacked(t *testing.T) {
	needClones(t)
	if !long() {
		t.Skip("compiles five programs in machines that are emulated: make long")
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	var endless strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&endless, "\tcase x == %d && x*%[1]d > %d:\n\t\tx += %[1]d\n\t\tprintln(x, \"%[1]d\")\n", i, i+1)
	}
	programs := testarchive.Open(t, "testdata/goimage.txtar")
	for _, c := range []struct {
		name, code string
		outcome    unitask.Outcome
		exit       int
		stdout     string
		timeout    time.Duration
	}{
		{
			name:    "what the image brings",
			code:    programs.Text("image.go"),
			outcome: unitask.OutcomeExited,
			stdout:  strings.Repeat("true true\n", 4),
			timeout: time.Minute,
		},
		{"memory",
			"func main() {\n\tvar all [][]byte\n\tfor {\n\t\tb := make([]byte, 16<<20)\n\t\tfor i := range b {\n" +
				"\t\t\tb[i] = 1\n" +
				"\t\t}\n\t\tall = append(all, b)\n\t}\n}", unitask.OutcomeOOM, unitask.ExitOOM, "", 2 * time.Minute},
		{"a stack", `func f(n int) int { return f(n+1) + 1 }

func main() { println(f(0)) }`, unitask.OutcomeOOM, unitask.ExitOOM, "", 2 * time.Minute},
		{"a stack with a bound", `import "runtime/debug"

func f(n int) int { return f(n+1) + 1 }

func main() {
	debug.SetMaxStack(64 << 20)
	println(f(0))
}`, unitask.OutcomeExited, 1, "", 2 * time.Minute},
		{"the compiler", "func main() {\n\tvar x int\n\tswitch {\n" + endless.String() + "\t}\n}", unitask.OutcomeTimeout,
			unitask.ExitTimeout, "", 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			res, err := rt.Run(t.Context(), unitask.Request{Language: "go", Code: "package main\n\n" + c.code + "\n",
				Timeout: c.timeout}, unitask.IO{})
			if err != nil || res.Outcome != c.outcome || res.ExitCode != c.exit || string(res.Stdout) != c.stdout {
				t.Errorf("%v %+v, %q", err, res, res.Stdout)
			}
			if strings.Contains(res.Hint(), "SetMaxStack") != (c.outcome == unitask.OutcomeOOM) {
				t.Errorf("the hint is %q", res.Hint())
			}
		})
	}
}
