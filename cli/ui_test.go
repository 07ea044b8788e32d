package cli

import (
	"testing"

	"github.com/unitask/unitask/policy"
)

// A denial names the flag, the key of the ceiling, and the key's file.
func TestDenial(t *testing.T) {
	file, err := policy.ParseCeiling("/p/.unitask.toml", []byte("# limits\nallowNet = []\n\nmemoryMb = 256\n"))
	if err != nil {
		t.Fatal(err)
	}
	base, err := policy.ParseCeiling("/home/base.toml", []byte("cpus = 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, denials, err := policy.Resolve(policy.Request{MemoryMB: 1024, CPUs: 2, AllowNet: []string{"a.example"}},
		base.With(file))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		"--memory 1024: at most 256 MiB is allowed by memoryMb in /p/.unitask.toml, line 4": true,
		"--allow-net a.example: is not allowed by allowNet in /p/.unitask.toml, line 2":     true,
		"--cpus 2: at most 1 is allowed by cpus in /home/base.toml":                         true,
	}
	for _, d := range denials {
		if got := denial(d); !want[got] {
			t.Errorf("got %q, want one of %v", got, want)
		}
	}
	if len(denials) != len(want) {
		t.Errorf("got %d denials, want %d", len(denials), len(want))
	}
	forged := policy.Denial{Field: "files", Requested: "a\x1b[2J\nb", Reason: "is not allowed", Key: "filesUnder",
		Rule: "/x\n/.unitask.toml"}
	const quoted = `--file "a\x1b[2J\nb": is not allowed by filesUnder in "/x\n/.unitask.toml"`
	if got := denial(forged); got != quoted {
		t.Errorf("got %q, want %q", got, quoted)
	}
}
