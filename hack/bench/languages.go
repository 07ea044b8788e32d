package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// compilesTwice compiles and runs two programs in sequence, and prints how long the second one took.
const compilesTwice = `package main

import (
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"
)

func main() {
	var took time.Duration
	for _, program := range []string{%q, %q} {
		if err := os.WriteFile("/tmp/hello.go", []byte(program), 0o600); err != nil {
			log.Fatal(err)
		}
		start := time.Now()
		if out, err := exec.Command("go", "run", "/tmp/hello.go").CombinedOutput(); err != nil {
			log.Fatalf("%%v: %%s", err, out)
		}
		took = time.Since(start)
	}
	fmt.Print(took)
}
`

// printed keeps its input, and the time of the first byte.
type printed struct {
	strings.Builder
	first time.Time
}

func (p *printed) Write(b []byte) (int, error) {
	if p.first.IsZero() {
		p.first = time.Now()
	}
	return p.Builder.Write(b)
}

// The programs of the suite.
const (
	python = "print('hello from python')"
	table  = "import pandas\nprint('hello from pandas', pandas.__version__)"
)

// goProgram returns a program in Go that no earlier run had.
func goProgram() string {
	return fmt.Sprintf("package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello from go\", %d) }\n",
		rand.Int64())
}

// languages compares the times of other languages with Node's (issue 19).
func (s *suite) languages(kernel image.Kernel, only string, rounds int) (bool, error) {
	classes := map[string]unitask.MachineClass{}
	for _, name := range []string{"node", "python", "data", "go"} {
		classes[name] = unitask.MachineClass{Image: name, Kernel: kernel}
		if _, err := s.rt.MakeTemplate(s.ctx, classes[name]); err != nil {
			return false, err
		}
	}
	pools := map[string]*unitask.Runtime{}
	for _, name := range []string{"node", "python"} {
		rt, err := unitask.Open(unitask.Options{Accel: vmm.TCG,
			Machines: unitask.Pool(unitask.PoolSize{Min: 1, Max: 1}, classes[name])})
		if err != nil {
			return false, err
		}
		defer rt.Close()
		pools[name] = rt
	}
	// run runs code, and returns the time until its first output, and until its end.
	run := func(rt *unitask.Runtime, language, name, code string) (first, whole time.Duration, err error) {
		var out printed
		start := time.Now()
		res, err := rt.Run(s.ctx, unitask.Request{Kernel: kernel, Language: language, Image: name, Code: code},
			unitask.IO{Stdout: &out})
		if err != nil {
			return 0, 0, err
		}
		if !res.Cloned || res.Pooled != (rt != s.rt) {
			return 0, 0, fmt.Errorf("%s: cloned %v, pooled %v", name, res.Cloned, res.Pooled)
		}
		return out.first.Sub(start), time.Since(start), said(out.String() + string(res.Stderr))
	}
	whole := func(rt *unitask.Runtime, language, name, code string) func() (time.Duration, error) {
		return func() (time.Duration, error) { _, d, err := run(rt, language, name, code); return d, err }
	}
	first := func(rt *unitask.Runtime, language, name, code string) func() (time.Duration, error) {
		return func() (time.Duration, error) { d, _, err := run(rt, language, name, code); return d, err }
	}
	compile := func() (time.Duration, error) {
		res, err := s.rt.Run(s.ctx, unitask.Request{Kernel: kernel, Language: "go", Image: "go",
			Code: fmt.Sprintf(compilesTwice, goProgram(), goProgram())}, unitask.IO{})
		if err != nil {
			return 0, err
		}
		took, err := time.ParseDuration(string(res.Stdout))
		if err != nil {
			err = fmt.Errorf("it said %s%s", res.Stdout, res.Stderr)
		}
		return took, err
	}
	same := goProgram()
	ready := func() error {
		for _, rt := range pools {
			if err := full(rt.Pool, 1); err != nil {
				return err
			}
		}
		return nil
	}
	rows := []row{
		{name: "python, a clone, to its first output", target: 1.0, subjectTook: first(s.rt, "python", "python", python),
			referenceTook: first(s.rt, "js", "node", hello), against: "the same of Node"},
		{name: "python, pool, to its first output", target: 1.0,
			subjectTook:   first(pools["python"], "python", "python", python),
			referenceTook: first(pools["node"], "js", "node", hello), against: "the same of Node", before: ready},
		{name: "python, pool", target: 1.0, subjectTook: whole(pools["python"], "python", "python", python),
			referenceTook: whole(pools["node"], "js", "node", hello), against: "the same of Node", before: ready},
		{name: "data: import pandas, a clone, to its first output", target: 1.3,
			subjectTook: first(s.rt, "python", "data", table), referenceTook: first(s.rt, "python", "python", python),
			against: "python's clone"},
		{name: "data: the same, a clone", target: 1.3, subjectTook: whole(s.rt, "python", "data", table),
			referenceTook: whole(s.rt, "python", "python", python), against: "python's clone"},
		{name: "go: a changed hello, a clone", target: 1.5,
			subjectTook: func() (time.Duration, error) { return whole(s.rt, "go", "go", goProgram())() }, referenceTook: compile,
			against: "go run of another one, in a machine that has just compiled"},
		{name: "go: the same hello again, a clone", target: 1.0, subjectTook: whole(s.rt, "go", "go", same),
			referenceTook: whole(s.rt, "js", "node", hello), against: "Node's clone"},
	}
	return s.rows(kernel, rows, only, rounds)
}
