package doctor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// The doctor reports that the default template failed twice, and what to do. cli/testdata/vm_giveup.txtar has the
// failures themselves.
func TestGivenUp(t *testing.T) {
	if !machine.CanClone {
		t.Skip("every run boots here")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	home := testhome.New(t, base)
	if err := os.Remove(filepath.Join(home, "templates")); err != nil { // the base's are not given up
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	im, err := rt.Images().Lookup(image.Linux, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	source := machine.Open(machine.Options{Home: home, Images: rt.Images(), Accel: vmm.TCG})
	defer source.Close()
	spec, err := source.Spec(t.Context(), im, machine.Class{MemoryMB: policy.DefaultMemoryMB})
	if err != nil {
		t.Fatal(err)
	}
	d, templates := &doctor.Doctor{Source: source}, machine.OpenTemplates(filepath.Join(home, "templates"))
	none, given := "no template yet", "templates failed 2 times and are given up until "
	for n, want := range []string{none, none, given} {
		r := doctor.CheckClone(t.Context(), d, im)
		if c := r.Checks[0]; c.Name != "clone" || !strings.HasPrefix(c.Detail, want) || r.OK != (n < 2) {
			t.Errorf("after %d failures: %+v", n, c)
		} else if n == 2 && (!strings.HasSuffix(c.Detail, ": load of migration failed") ||
			!strings.HasPrefix(c.Remedy, "until then every run boots")) {
			t.Errorf("%+v", c)
		}
		templates.Failed(spec.Key(), errors.New("load of migration failed"))
	}
}
