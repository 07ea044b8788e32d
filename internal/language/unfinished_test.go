package language

import "testing"

func TestUnfinished(t *testing.T) {
	for _, c := range []struct {
		language, text string
		want           bool
	}{
		{"python", "x = 1", false}, {"python", "", false}, {"python", "for i in range(3):", true},
		{"python", "for i in range(3):\n    print(i)", true}, {"python", "for i in range(3):\n    print(i)\n", true},
		{"python", "for i in range(3):\n    print(i)\n\n", false}, {"python", "f(1,", true}, {"python", "f(1,\n2)", false},
		{"python", "[i\n for i in x]", false}, {"python", "if x: y", false},
		{"python", "s = 'a(b'", false}, {"python", "s = 'it\\'s ('", false}, {"python", "# (", false},
		{"python", "x = 1 # it's (", false}, {"python", `s = """a`, true}, {"python", `s = """a` + "\n" + `b"""`, false},
		{"python", "s = 'a", false}, {"python", "@cache", true}, {"python", "x = \\", true}, {"python", "x = {1: [2", true},
		{"python", "x = {1: [2\n\n", true}, {"python", "x = {1: [2\n\n\n", false},
		{"python", "s = \"\"\"a\n\n", true}, {"js", "if (0) {\n\n", true}, {"js", "if (0) {\n\n\n", false},
		{"js", "`a\n\n", true},
		{"shell", "if false; then\n\n", true}, {"shell", "if false; then\n\n\n", false}, {"shell", "'a\n\n", true},
		{"shell", "ls |\n\n", false}, {"python", "\n", false}, {"python", ")", false},
		{"js", "const f = () => {", true}, {"js", "const f = () => {\n return 1 }", false}, {"js", "`a", true},
		{"js", "`a ${b}\n`", false}, {"js", "'('", false}, {"js", "// {", false}, {"js", "'it", false},
		{"js", `"a\"{"`, false}, {"js", "const a: = {", true}, {"ts", "enum A {", true},
		{"shell", "echo hi", false}, {"shell", "for i in 1 2; do", true}, {"shell", "for i in 1 2\ndo\necho $i", true},
		{"shell", "for i in 1 2; do echo $i; done", false}, {"shell", "if true; then", true},
		{"shell", "if true; then echo x; fi", false}, {"shell", "case a in a) echo x;;", true},
		{"shell", "case a in a) echo x;; esac", false}, {"shell", "ls |", true}, {"shell", "true &&", true},
		{"shell", "echo 'a", true}, {"shell", "echo 'a\nb'", false}, {"shell", "echo 'a\\'", false}, {"shell", "f() {", true},
		{"shell", "f(){", true}, {"shell", "f() { echo x; }", false}, {"shell", "echo for if case", false},
		{"shell", "cat <<E", true}, {"shell", "cat <<E\na", true}, {"shell", "cat <<E\na\n", true},
		{"shell", "cat <<E\na\nE", false}, {"shell", "cat <<-'E'\n\ta\n\tE", false}, {"shell", "cat <<A <<B\nA", true},
		{"shell", "cat <<A <<B\nA\nB", false}, {"shell", "cat <<<E", false}, {"shell", "echo $((1<<2))", false},
		{"shell", "echo a#'b", true}, {"shell", "echo a #'b", false}, {"shell", "echo $(ls", false},
		{"shell", "echo \"a", true}, {"shell", "while read x; do echo $x; done <f", false},
	} {
		l, _, err := Named(c.language)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Unfinished(c.text); got != c.want {
			t.Errorf("%s: %q: %t", c.language, c.text, got)
		}
	}
}
