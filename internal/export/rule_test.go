package export

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// Next to other files, no file appears that tools of many languages would run or obey because it exists.
func TestAttackRunByTools(t *testing.T) {
	for what, names := range map[string]string{
		"modules that Python's library imports": "cProfile.py _strptime.py lib/_pydecimal.py " +
			"_json.cpython-313-x86_64-linux-gnu.so __future__.py _sysconfigdata__linux_x86_64-linux-gnu.py _colorize.py " +
			"compression.py",
		"Python's tools": "gunicorn.conf.py docs/conf.py celeryconfig.py scrapy.cfg invoke.yaml " +
			"wsgi.py buildout.cfg",
		"Node's tools": "ormconfig.js knexfile.ts nodemon.json gatsby-node.js src/middleware.ts " +
			"truffle-config.js test_x.mjs",
		"Ruby's, PHP's and Elixir's tools": "config/initializers/x.rb test/test_x.rb spec/spec_helper.rb irbrc " +
			"_plugins/x.rb wp-cli.yml RoboFile.php tests/XTest.php config/runtime.exs test/x_test.exs",
		"the JVM's and .NET's tools": "gradle/wrapper/gradle-wrapper.jar src/test/java/XTest.java " +
			"app.csproj.user build.proj nextflow.config",
		"builds": "default.do BUILD.gn x.gni common.gypi app.pro Tuprules.tup mkfile " +
			"Kbuild conanfile.py Setup.lhs book.toml latexmkrc",
		"runners of processes": "Procfile.dev process-compose.yaml lefthook-local.yml devenv.nix",
	} {
		through := []string{}
		for name := range strings.FieldsSeq(names) {
			if !RunByTools(name) {
				through = append(through, name)
			}
		}
		attack.Check(t, "out: what is run because it is there, "+what, "", strings.Join(through, " "))
	}
	for name := range strings.FieldsSeq(
		"result.json plot.png data.csv main.py app.py report.md index.html notes.txt src/util.ts lib.rs users.sql " +
			"profile.txt code.txt") {
		if RunByTools(name) {
			t.Errorf("%s is held back", name)
		}
	}
}

// The list has all modules of the host's Python.
func TestPythonModules(t *testing.T) {
	out, err := exec.Command("python3", "-I", "-c", "import sys; print(*sys.stdlib_module_names)").Output()
	if err != nil {
		t.Skip("there is no python3")
	}
	for name := range strings.FieldsSeq(string(out)) {
		if !RunByTools(name + ".py") {
			t.Errorf("%s.py is not held back", name)
		}
	}
}
