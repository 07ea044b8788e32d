package program

import (
	"fmt"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// If a ceiling grants only one kernel, nothing runs on the other one: no language, file, option or image.
func TestAttackKernelCeiling(t *testing.T) {
	codes := map[string]run.Request{
		"JavaScript":     {Code: "1"},
		"TypeScript":     {Code: "1", Language: "ts"},
		"JSX":            {Code: "1", Language: "jsx"},
		"Python":         {Code: "1", Language: "python"},
		"shell":          {Code: "1", Language: "shell"},
		"Go":             {Code: "package main\nfunc main() {}", Language: "go"},
		"data":           {Code: "1", Image: "data"},
		"a container's":  {Code: "1", Language: "python", Image: "python:3.12-slim"},
		"a command's":    {Args: []string{"true"}, Image: "alpine:3.20", Language: "command"},
		"inline files'":  {Code: "import './a.tsx'", InlineFiles: []run.InlineFile{{Name: "a.tsx", Content: "1"}}},
		"a half's worth": {Code: "1", CPUs: 0.5},
	}
	options := map[string]func(*run.Request){
		"no option": func(*run.Request) {},
		"fresh":     func(r *run.Request) { r.FreshProcess = true },
		"check":     func(r *run.Request) { r.Check = true },
		"retry":     func(r *run.Request) { r.KernelRetry = true },
		"cold":      func(r *run.Request) { r.Cold = true },
		"network":   func(r *run.Request) { r.AllowNet = []string{"a.example"} },
		"an own process": func(r *run.Request) {
			r.Env = map[string]string{"PYTHONOPTIMIZE": "1", "NODE_OPTIONS": "--max-old-space-size=64"}
		},
		"two processors":  func(r *run.Request) { r.CPUs = 2 },
		"retry and check": func(r *run.Request) { r.KernelRetry, r.Check = true, true },
	}
	ran, tried := map[image.Kernel]int{}, 0
	for _, only := range []image.Kernel{image.Linux, image.Nanos} {
		ceiling, err := policy.ParseCeiling("test", fmt.Appendf(nil, "kernel = %q\n", only))
		if err != nil {
			t.Fatal(err)
		}
		for code, req := range codes {
			for option, set := range options {
				for _, asked := range []image.Kernel{"", "auto", image.Linux, image.Nanos} {
					req := req
					set(&req)
					req.Kernel = asked
					p, err := Check(catalog.Request{Request: req})
					if err != nil {
						continue
					}
					tried++
					_, granted, err := p.Grant(run.Caller{Ceiling: ceiling}, catalog.Request{Request: req}, nil)
					p.Close()
					if got := image.Kernel(granted.Effective.Kernel); err == nil {
						ran[only]++
						if got != only {
							attack.Check(
								t,
								fmt.Sprintf(
									"%s with %s asks for kernel %q, and the ceiling grants %s alone",
									code,
									option,
									asked,
									only,
								),
								string(only),
								string(got),
							)
						}
					}
				}
			}
		}
	}
	attack.Check(
		t,
		"requests under ceilings that grant one kernel alone: some ran on each",
		"true true true",
		fmt.Sprint(ran[image.Linux] > 100, ran[image.Nanos] > 50, tried > 500),
	)
	t.Log(tried, ran)
}
