package unitask_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// A machine has the granted processors. If the host can't provide them, nothing runs.
func TestProcessors(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	run := func(req unitask.Request) (*unitask.Result, error) {
		req.Code, req.Cold = "console.log(require(\"os\").availableParallelism())", true
		return rt.Run(t.Context(), req, unitask.IO{})
	}
	res, err := run(unitask.Request{CPUs: 2})
	if err != nil || strings.TrimSpace(string(res.Stdout)) != "2" || res.Kernel != image.Linux ||
		res.Policy.Effective.CPUs != 2 {
		t.Errorf("%v %+v", err, res)
	}
	var wrong *policy.FieldError
	if _, err := run(unitask.Request{CPUs: 2, Kernel: image.Nanos}); !errors.As(err, &wrong) || wrong.Field != "cpus" {
		t.Errorf("two processors on nanos: %v", err)
	}
	switch res, err := run(unitask.Request{CPUs: 0.5, Kernel: image.Linux}); {
	case vmm.CanShareProcessor() != nil && (!errors.As(err, &wrong) || wrong.Field != "cpus" ||
		!strings.Contains(err.Error(), "control group")):
		t.Errorf("half a processor without control groups: %v", err)
	case vmm.CanShareProcessor() == nil && (err != nil || strings.TrimSpace(string(res.Stdout)) != "1"):
		t.Errorf("half a processor: %v %+v", err, res)
	}
}
