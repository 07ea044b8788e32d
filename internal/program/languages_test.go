package program

import (
	"errors"
	"strings"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

func TestLanguageOfARequest(t *testing.T) {
	for _, c := range []struct {
		req      run.Request
		language string // "" for an error
		path     string // or a part of the error
	}{
		{run.Request{}, "js", "/work/code.js"},
		{run.Request{Path: "x.mts"}, "js", "/work/x.mts"},
		{run.Request{Path: "x.py"}, "python", "/work/x.py"},
		{run.Request{Path: "/a/x.sh"}, "shell", "/a/x.sh"},
		{run.Request{Path: "x.bash"}, "shell", "/work/x.bash"},
		{run.Request{Language: "typescript"}, "js", "/work/code.ts"},
		{run.Request{Language: "mjs"}, "js", "/work/code.mjs"},
		{run.Request{Language: "py"}, "python", "/work/script.py"},
		{run.Request{Language: "bash"}, "shell", "/work/code.bash"},
		{run.Request{Image: "python"}, "python", "/work/script.py"},
		{run.Request{Image: "python", Language: "python3"}, "python", "/work/script.py"},
		{run.Request{Language: "python", Path: "script"}, "python", "/work/script"},
		{run.Request{Language: "shell", Path: "x.js"}, "shell", "/work/x.js"},
		{run.Request{Language: "js", Path: "script"}, "js", "/work/script"},
		{run.Request{Language: "js", Path: "script.txt"}, "", "must end in .js"},
		{run.Request{Path: "script"}, "", "or its language must be named"},
		{run.Request{Path: "x.rb"}, "", "must end in .js, .cjs"},
		{run.Request{Language: "pyton"}, "", "did you mean python?"},
		{run.Request{Language: "Javscript"}, "", "did you mean javascript?"},
		{run.Request{Language: "cobol"}, "", "use js, cjs"},
		{run.Request{Image: "data"}, "python", "/work/script.py"},
		{run.Request{Image: "data", Path: "x.py"}, "python", "/work/x.py"},
		{run.Request{Image: "data", Language: "shell"}, "", "has no shell, which is in shell"},
		{run.Request{Image: "python@3.11"}, "python", "/work/script.py"},
		{run.Request{Image: "data@3.11", Path: "x.py"}, "python", "/work/x.py"},
		{run.Request{Image: "python@3.11", Path: "x.sql"}, "sql", "/work/x.sql"},
		{run.Request{Image: "python@3.11", Language: "shell"}, "", "has no shell, which is in shell"},
		{run.Request{Image: "python@3.10"}, "",
			`image "python@3.10": there is no such version: use python (3.13) or python@3.11`},
		{run.Request{Image: "python@3.13"}, "", "use python (3.13) or python@3.11"},
		{run.Request{Image: "node@22"}, "", "use node (24.21)"},
		{run.Request{Image: "go@1.25"}, "", "use go (1.26)"},
		{run.Request{Image: "nodee@22"}, "", "use node, python, data, shell, go"},
		{run.Request{Image: "python@"}, "", "is no reference of a container image"},
		{run.Request{Image: "python@../x"}, "", "is no reference of a container image"},
		{run.Request{Image: "@3.11"}, "", "is no reference of a container image"},
		{run.Request{Image: "python@3.11@3"}, "", "is no reference of a container image"},
		{run.Request{Image: "pandas"}, "", "use node, python, data, shell, go"},
		{run.Request{Path: "x.go"}, "go", "/work/x.go"},
		{run.Request{Language: "golang"}, "go", "/work/code.go"},
		{run.Request{Language: "go", Path: "script"}, "", "must end in .go"},
		{run.Request{Language: "go", NodeArgs: []string{"-x"}}, "", "is for JavaScript only"},
		{run.Request{Image: "dat", Path: "x.py"}, "", "did you mean data?"},
		{run.Request{Path: "x.ipynb"}, "notebook", "/work/x.ipynb"},
		{run.Request{Image: "python", Path: "x.ipynb"}, "notebook", "/work/x.ipynb"},
		{run.Request{Image: "data", Path: "x.sql"}, "sql", "/work/x.sql"},
		{run.Request{Language: "ipynb"}, "notebook", "/work/code.ipynb"},
		{run.Request{Language: "sqlite"}, "sql", "/work/code.sql"},
		{run.Request{Image: "node", Path: "x.sql"}, "", "must end in .js"},
		{run.Request{Image: "alpine:3.20", Path: "x.sql"}, "", "has no interpreter of sql"},
		{run.Request{Image: "alpine:3.20", Path: "x.go"}, "", "has no interpreter of go"},
		{run.Request{Image: "node", Language: "python"}, "", "has no python, which is in python, data"},
		{run.Request{Language: "python", NodeArgs: []string{"--expose-gc"}}, "", "is for JavaScript only"},
		{run.Request{Language: "python", Args: []string{"a\xff"}}, "", "args \"a\\xff\": is not UTF-8"},
		{run.Request{Language: "shell", Env: map[string]string{"NAME": "\xff"}}, "", "env \"NAME\": is not UTF-8"},
		{run.Request{Language: "shell", Secrets: map[string]string{"TOKEN": "123456\xff"}}, "",
			"secrets \"TOKEN\": is not UTF-8"},
	} {
		p, err := Check(catalog.Request{Request: c.req})
		if c.language == "" {
			var field *policy.FieldError
			if !errors.As(err, &field) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("%+v: %v does not say %q", c.req, err, c.path)
			}
			continue
		}
		if err != nil || p.Language.Name != c.language || p.Path != c.path {
			t.Errorf("%+v: %v, %+v", c.req, err, p)
		}
	}
}

func TestNodesOwn(t *testing.T) {
	p, err := Check(catalog.Request{Request: run.Request{Path: "x.py", PackageType: "module"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range p.Files() {
		if strings.HasSuffix(f.Path, "package.json") {
			t.Errorf("%s in a run of Python", f.Path)
		}
	}
}

func TestLanguagesKernel(t *testing.T) {
	for _, c := range []struct {
		req     run.Request
		granted image.Kernel
		want    image.Kernel // "" for an error, or any
		ok      bool
	}{
		{run.Request{}, "", "", true},
		{run.Request{}, image.Nanos, image.Nanos, true},
		{run.Request{Path: "page.tsx"}, "", image.Linux, true},
		{run.Request{Language: "jsx"}, "", image.Linux, true},
		{run.Request{Path: "page.tsx"}, image.Nanos, image.Nanos, true}, // its error says what it needs
		{run.Request{Path: "main.ts"}, "", "", true},
		{run.Request{Language: "python"}, "", image.Linux, true},
		{run.Request{Language: "python"}, image.Nanos, image.Nanos, true},
		{run.Request{Language: "python", Check: true}, image.Nanos, "", false},
		{run.Request{Language: "python", Env: map[string]string{"PYTHONOPTIMIZE": "1"}}, image.Nanos, "", false},
		{run.Request{Language: "shell"}, image.Linux, image.Linux, true},
		{run.Request{Language: "shell"}, image.Nanos, "", false},
		{run.Request{Language: "go"}, "", image.Linux, true},
		{run.Request{Language: "go"}, image.Nanos, "", false},
	} {
		p, err := Check(catalog.Request{Request: c.req})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Kernel(c.granted); got != c.want && c.ok || (err == nil) != c.ok {
			t.Errorf("%q with %q: %q %v", c.req.Language, c.granted, got, err)
		}
	}
}
