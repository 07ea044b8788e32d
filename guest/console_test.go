package guest

import "testing"

func TestLastWords(t *testing.T) {
	for name, c := range map[string]struct {
		console string
		end     End
		ok      bool
	}{
		"nothing":          {"", End{}, false},
		"a boot":           {"[0.08] en1: assigned 10.0.2.15\n", End{}, false},
		"nanos, memory":    {"[1.6] page fill failed with (result:out of memory)\n\n*** signal 7 received by tid 2, errno 0, code 2\n", End{Signal: 9, OOM: true}, true},
		"nanos, pages":     {"page table: failed to allocate memory\n", End{Signal: 9, OOM: true}, true},
		"nanos, a crash":   {"x\n*** signal 11 received by tid 2, errno 0, code 1\n", End{Signal: 11}, true},
		"no such signal":   {"*** signal 99 received by tid 2\n", End{}, false},
		"signal 0":         {"*** signal 0 received by tid 2\n", End{}, false},
		"within a line":    {"x *** signal 11 received by tid 2\n", End{}, false},
		"linux, deadlock":  {"Kernel panic - not syncing: System is deadlocked on memory\n", End{Signal: 9, OOM: true}, true},
		"linux, else":      {"Kernel panic - not syncing: Attempted to kill init!\n", End{}, false},
		"an endless digit": {"*** signal 1111111111111111111111111111 received by tid\n", End{}, false},
	} {
		if end, ok := LastWords(c.console); end != c.end || ok != c.ok {
			t.Errorf("%s: %+v %v", name, end, ok)
		}
	}
}
