package jail

import (
	"os"
	"testing"
)

// On a host that can't start processes in a control group, no start leaves a descriptor open. Go's own start with user
// mappings does.
func TestGroupRefused(t *testing.T) {
	defer func(m, in bool) { mapped.Store(m); mappedIn.Store(in) }(mapped.Load(), mappedIn.Load())
	var self *level
	for _, l := range levels(os.Getuid(), os.Getgid(), aUser(), nil) {
		if l.attr.UidMappings != nil {
			self = &l
		}
	}
	none, err := os.Open(t.TempDir()) // not a control group: the kernel refuses it as one
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if _, err := self.permitted(&group{}); err != nil {
		t.Skipf("this host maps no users: %v", err)
	}
	start := func() error {
		_, err := self.run(Spec{}, newStage(), facts{status: standInStatus}, nil, &group{file: none})
		return err
	}
	if err := start(); err == nil {
		t.Fatal("a process was started in a folder that is no control group")
	}
	before := descriptors(t)
	for range 10 {
		if err := start(); err == nil {
			t.Fatal("a process was started in a folder that is no control group")
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	if _, err := self.permitted(&group{}); err != nil { // without a group nothing is wrong
		t.Error(err)
	}
}
