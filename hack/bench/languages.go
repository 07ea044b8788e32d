package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// languages measures what other languages take than Node (issue 19).
func (s *suite) languages(kernel image.Kernel, only string, rounds int) (bool, error) {
	shapes := map[string]unitask.Shape{}
	for _, name := range []string{"node", "python", "data", "go"} {
		shapes[name] = unitask.Shape{Image: name, Kernel: kernel}
		if _, err := s.rt.MakeTemplate(s.ctx, shapes[name]); err != nil {
			return false, err
		}
	}
	pools := map[string]*unitask.Runtime{}
	for _, name := range []string{"node", "python"} {
		rt, err := unitask.Open(unitask.Options{Accel: vmm.TCG, Machines: unitask.Pool(unitask.PoolSize{Min: 1, Max: 1}, shapes[name])})
		if err != nil {
			return false, err
		}
		defer rt.Close()
		pools[name] = rt
	}
	run := func(rt *unitask.Runtime, language, name, code string) func() error {
		return func() error {
			res, err := rt.Run(s.ctx, unitask.Request{Kernel: kernel, Language: language, Image: name, Code: code}, unitask.IO{})
			if err != nil {
				return err
			}
			if !res.Cloned || res.Pooled != (rt != s.rt) {
				return fmt.Errorf("%s: cloned %v, pooled %v", name, res.Cloned, res.Pooled)
			}
			return said(string(res.Stdout) + string(res.Stderr))
		}
	}
	const python = "print('hello from python')"
	node := run(s.rt, "js", "node", hello)
	goes, err := s.rt.NewSession(s.ctx, unitask.SessionRequest{Request: unitask.Request{Kernel: kernel, Language: "shell", Image: "go"}})
	if err != nil {
		return false, err
	}
	defer goes.Close()
	program := func() string {
		return fmt.Sprintf("package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello from go\", %d) }\n", rand.Uint64())
	}
	compile := func() error {
		res, err := goes.Exec(s.ctx, unitask.Command{Args: []string{"sh", "-c", "cat > hello.go && go run hello.go"}, Stdin: strings.NewReader(program())})
		if err != nil {
			return err
		}
		return said(string(res.Stdout) + string(res.Stderr))
	}
	same := program()
	ready := func() error {
		for _, rt := range pools {
			if err := full(rt.Pool, 1); err != nil {
				return err
			}
		}
		return nil
	}
	rows := []row{
		{name: "python, pool", target: 1.0, subject: run(pools["python"], "python", "python", python), reference: run(pools["node"], "js", "node", hello), against: "the same of Node", before: ready},
		{name: "data: import numpy and pandas, a clone", target: 1.3, subject: run(s.rt, "python", "data", "import numpy, pandas\nprint('hello from', pandas.DataFrame({'a': [1, 2]}).a.sum())"),
			reference: run(s.rt, "python", "python", python), against: "python's clone"},
		{name: "go: a changed hello, a clone", target: 1.5, subject: func() error { return run(s.rt, "go", "go", program())() }, reference: compile, against: "the same in a machine that has compiled before"},
		{name: "go: the same hello again, a clone", target: 1.0, subject: run(s.rt, "go", "go", same), reference: node, against: "Node's clone"},
	}
	return s.rows(kernel, rows, only, rounds)
}
