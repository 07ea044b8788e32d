package cli

import "testing"

func TestInterpreter(t *testing.T) {
	for line, want := range map[string]string{
		"#!/usr/bin/python3\nx": "python", "#! /usr/bin/env python3.13 -u": "python", "#!/usr/bin/env -S A=1 node --x": "js", "#!/bin/sh -e\r\n": "shell",
		"#!/usr/local/bin/bash": "shell", "#!/usr/bin/env": "", "#!": "", "#!/usr/bin/perl": "", "print(1)": "", "": "", "#!/usr/bin/python2": "", "#!/bin/python3-config": "",
	} {
		if got := interpreter(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
