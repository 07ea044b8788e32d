package policy

import (
	"testing"
)

func TestParsePackage(t *testing.T) {
	for text, want := range map[string]string{
		"pip:requests": "pip:requests", "pip:Requests==2.32.3": "pip:requests==2.32.3",
		"pip:zope.Interface": "pip:zope-interface", "pip:a__b": "pip:a-b",
		"pip:requests[Socks]>=2, <3": "pip:requests[socks]>=2,<3", "npm:zod@4": "npm:zod@4",
		"npm:@acme/tool@^1.2": "npm:@acme/tool@^1.2", "npm:zod@latest": "npm:zod@latest",
		"pip:*": "pip:*", "npm:@acme/*": "npm:@acme/*",
		// Not packages of a registry, or a tool's own arguments.
		"requests": "", "": "", "pip:": "", "npm:": "", "deb:jq": "", "pip:-r": "", "pip:--index-url=x": "",
		"npm:--registry=x": "", "npm:-g": "", "pip:git+https://h/x": "", "pip:x @ https://h/x.whl": "",
		"pip:./x": "", "pip:/etc": "", "pip:x.whl/..": "", "npm:../x": "", "npm:file:x": "", "npm:x@npm:y": "",
		"npm:git@github.com/x": "", "npm:acme/tool": "", "npm:x@file": "npm:x@file", "npm:x@https://h/x.tgz": "",
		"pip:x==1,": "", "pip:x;python_version<'3'": "", "pip:x\n--pre": "", "npm:x\n": "", "pip:re*": "", "npm:@*/x": "",
		"npm:zod@4 || 5": "",
	} {
		got, err := ParsePackage(text)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v, want %q", text, got, err, want)
		}
	}
}

// A ceiling's entry without a version covers every version, and an entry with a version only that one.
func TestPackageCeiling(t *testing.T) {
	asked := []string{"pip:requests==2.32.3", "pip:Flask[async]>=2", "npm:zod@4", "npm:@acme/tool@1", "npm:@acme.evil/x"}
	for _, c := range []struct {
		allowed string
		granted int
	}{
		{`[]`, 0}, {`["pip:*"]`, 2}, {`["npm:*", "pip:*"]`, 5}, {`["npm:zod"]`, 1}, {`["npm:zod@4"]`, 1},
		{`["npm:zod@3"]`, 0}, {`["npm:zo"]`, 0}, {`["pip:flask"]`, 1}, {`["npm:@acme/*"]`, 1},
		{`["pip:requests==2.32.4"]`, 0}, {`["pip:request"]`, 0},
	} {
		e, denials, err := Resolve(Request{Packages: asked}, ceiling(t, "packages = "+c.allowed))
		if err != nil || len(e.Packages) != c.granted || len(denials) != len(asked)-c.granted {
			t.Errorf("%s: %v %v %v", c.allowed, e.Packages, denials, err)
		}
	}
	if e, denials, err := Resolve(Request{Packages: asked}, BuiltIn("", "")); err != nil || len(e.Packages) != 0 ||
		len(denials) != len(asked) {
		t.Errorf("the built-in ceiling: %v %v %v", e.Packages, denials, err)
	}
}
