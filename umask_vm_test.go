package unitask_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// If root starts QEMU, it runs as another user. Machines start and are cloned under any umask of ours, and no created
// file is open to others. The umask applies to the whole process, so this test is not parallel.
func TestAttackUmask(t *testing.T) {
	needVM(t)
	for _, mask := range []int{0o077, 0o027, 0} {
		home := newHome(t)
		before := syscall.Umask(mask)
		got := fmt.Sprint(func() error {
			rt, err := unitask.Open(unitask.Options{Home: home})
			if err != nil {
				return err
			}
			defer rt.Close()
			for _, cold := range []bool{true, false} {
				res, err := rt.Run(t.Context(), unitask.Request{Code: `require("fs").writeFileSync("/out/x", "1")`, Cold: cold},
					unitask.IO{})
				if err != nil {
					return err
				}
				if res.ExitCode != 0 || len(res.Artifacts) != 1 {
					return fmt.Errorf("%+v", res)
				}
			}
			return nil
		}())
		syscall.Umask(before)
		attack.Check(t, fmt.Sprintf("runs under umask %03o", mask), "<nil>", got)
	}
}
