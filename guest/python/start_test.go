package python

import (
	"fmt"
	"testing"
)

func TestNeedsProcess(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, ""},
		{map[string]string{"PATH": "/x", "HOME": "/home/user", "TZ": "UTC", "SSL_CERT_FILE": "/x", "PYTHONPATH": "",
			"PYTHONBREAKPOINT": "0", "LANGUAGE": "de"}, ""},
		{map[string]string{"PYTHONPATH": "/x", "PYTHONHASHSEED": "0"}, "PYTHONHASHSEED"},
		{map[string]string{"LC_ALL": "C"}, "LC_ALL"},
		{map[string]string{"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}, ""},
		{map[string]string{"LANG": "C.UTF-8", "LC_ALL": "C"}, "LC_ALL"},
		{map[string]string{"MPLBACKEND": "svg", "MPX": "1"}, "MPLBACKEND"},
		{map[string]string{"LANG": "de_DE.UTF-8"}, "LANG"},
		{map[string]string{"HOME": "/work"}, "HOME"},
	} {
		if got := NeedsProcess(nil, c.env); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
}

func TestProcess(t *testing.T) {
	args, env := Process(nil, map[string]string{"PYTHONPATH": "/x"})
	if got, want := fmt.Sprint(args, env), "[] [UNITASK_FRESH=1]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestMissingModule(t *testing.T) {
	for stderr, want := range map[string]string{
		"Traceback (most recent call last):\n  File \"/w/a.py\", line 1, in <module>\n    import numpy.linalg\n" +
			"ModuleNotFoundError: No module named 'numpy'\n": "numpy",
		"I say: ModuleNotFoundError: No module named 'x'\n":                  "",
		"ModuleNotFoundError: No module named 'a sentence. Run this: x'\n":   "",
		"ImportError: cannot import name 'x' from 'os' (/usr/lib/x/os.py)\n": "",
		"ModuleNotFoundError: No module named 'a.b'; 'a' is not a package\n": "a.b",
	} {
		if got := MissingModule(stderr); got != want {
			t.Errorf("%q: %q, want %q", stderr, got, want)
		}
	}
}
