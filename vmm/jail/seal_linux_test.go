package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// At every level a process opens its own files until it is sealed, and none afterwards. With a separate root that holds
// even without the filter.
func TestAttackSeal(t *testing.T) {
	needRoot(t)
	target, p := prepared(t)
	before := descriptors(t)
	for _, l := range levels(0, 0, nobody, nil) {
		for _, c := range []struct{ sealed, unfiltered bool }{{false, false}, {true, false}, {true, true}} {
			s := script{newStage()}
			s.read(filepath.Join(target.dir, "stand-in")) // possible before
			if c.sealed {
				s.seal()
			}
			s.read(filepath.Join(target.dir, "stand-in"))
			reports, process, err := s.run(target, []level{l}, Spec{Program: p, Unfiltered: c.unfiltered})
			if err != nil {
				t.Fatal(err)
			}
			holds := len(process.Report.Lacks([]string{Sealed})) == 0
			if want := l.flags&unix.CLONE_NEWNS != 0 || !c.unfiltered; holds != want {
				t.Errorf("%s, %+v: the seal holds: %t, expected %t", l.name, c, holds, want)
			}
			came, failed, _ := s.outcome(reports)
			switch {
			case process.Denied() != "":
				t.Errorf("%s, %+v: ended for %s", l.name, c, process.Denied())
			case !c.sealed || !holds:
				if !came {
					t.Errorf("%s, %+v: it can't open its own file: %v", l.name, c, failed)
				}
			default:
				name := fmt.Sprintf("it opens its own file once it is sealed, as %s", l.name)
				if c.unfiltered {
					name += ", without the filter"
				}
				attack.Check(t, name, "[openat: permission denied], came false", fmt.Sprintf("%v, came %t", failed, came))
			}
			if err := process.Seal(); err != nil { // of a process that has ended
				t.Error(err)
			}
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// At every level the given file goes to the open that it is for, and to no earlier one. QEMU 7.2 looks for an SGX
// device before.
func TestGivenOnLevels(t *testing.T) {
	needRoot(t)
	p, err := Examine(someProgram(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !CanGive() || !Confines(p) {
		t.Skip("this kernel's listeners give no descriptors (Linux 5.9), or it has no Landlock (5.13)")
	}
	target, err := newTargets()
	if err != nil {
		t.Fatal(err)
	}
	defer target.end()
	given, err := os.Open(filepath.Join(target.dir, targetFile))
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	for _, l := range levels(0, 0, nobody, nil) {
		s := script{newStage()}
		s.steps[s.open("/dev/nothing", unix.O_RDWR|unix.O_CLOEXEC)].then = goOn
		s.call("read", unix.SYS_READ, s.open("/whatever", unix.O_RDWR), make([]byte, 8), 1)
		reports, process, err := s.run(target, []level{l}, Spec{Program: p, Given: given})
		if err != nil {
			t.Fatal(err)
		}
		if came, failed, _ := s.outcome(reports); !came || !process.Gives() || process.Denied() != "" {
			t.Errorf("%s: came %t, gives %t, denied %q, failed %v", l.name, came, process.Gives(), process.Denied(), failed)
		}
	}
}
