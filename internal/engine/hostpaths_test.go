package engine

import (
	"fmt"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/program"
)

// Hints look at files of the host only if the code runs in a folder of a caller on this host.
func TestAttackHostPaths(t *testing.T) {
	for _, row := range []struct {
		name, host string
		code       program.Program
		want       bool
	}{
		{"a caller's folder", "/home/a", program.Program{Dir: "/home/a"}, true},
		{"a caller elsewhere", "", program.Program{Dir: "/work"}, false},
		{"the folder of all", "/", program.Program{Dir: "/work"}, false},
		{"the folder of all, there too", "/", program.Program{Dir: "/"}, false},
		{"a folder that a guest can't have", "/etc", program.Program{Dir: "/work"}, false},
		{"an image's folder", "/home/a", program.Program{Dir: "/etc"}, false},
		{"a command of an image", "/home/a", program.Program{Dir: "/home/a", Command: true}, false},
	} {
		x := Execution{Code: &row.code, hostDir: row.host}
		attack.Check(t, "hints look at files of the host: "+row.name, fmt.Sprint(row.want), fmt.Sprint(x.hasHostPaths()))
	}
}
