package policy

import (
	"errors"
	"math"
	"testing"
)

func TestResolve(t *testing.T) {
	e, denials, err := Resolve(Request{})
	if err != nil || len(denials) != 0 || e != (Effective{MemoryMB: 512, TimeoutSeconds: 60, OutputBytes: 16 << 20}) {
		t.Errorf("%+v %v %v", e, denials, err)
	}
	for name, c := range map[string]struct {
		req   Request
		field string
	}{
		"kernel":                 {Request{Kernel: "bsd"}, "kernel"},
		"kernel in capitals":     {Request{Kernel: "Linux"}, "kernel"},
		"too little memory":      {Request{MemoryMB: 127}, "memoryMb"},
		"negative memory":        {Request{MemoryMB: -1}, "memoryMb"},
		"too much memory":        {Request{MemoryMB: 1 << 30}, "memoryMb"},
		"no time":                {Request{TimeoutSeconds: -0.001}, "timeoutSeconds"},
		"too much time":          {Request{TimeoutSeconds: 86401}, "timeoutSeconds"},
		"time that is no number": {Request{TimeoutSeconds: math.NaN()}, "timeoutSeconds"},
		"endless time":           {Request{TimeoutSeconds: math.Inf(1)}, "timeoutSeconds"},
		"negative output":        {Request{OutputBytes: -1}, "outputBytes"},
		"too much output":        {Request{OutputBytes: 1<<30 + 1}, "outputBytes"},
	} {
		e, _, err := Resolve(c.req)
		var bad *FieldError
		if !errors.As(err, &bad) || bad.Field != c.field || bad.Reason == "" || e != (Effective{}) {
			t.Errorf("%s: %+v %v", name, e, err)
		}
	}
}

// Whatever is asked for, what is granted lies within the bounds, and resolving
// it again changes nothing.
func FuzzResolve(f *testing.F) {
	f.Add("linux", 512, 60.0, int64(100))
	f.Add("", 0, 0.0, int64(0))
	f.Fuzz(func(t *testing.T, kernel string, memory int, timeout float64, output int64) {
		e, _, err := Resolve(Request{kernel, memory, timeout, output})
		if err != nil {
			return
		}
		if e.MemoryMB < MinMemoryMB || e.MemoryMB > MaxMemoryMB || !(e.TimeoutSeconds > 0) || e.TimeoutSeconds > MaxTimeoutSeconds || e.OutputBytes < 1 || e.OutputBytes > MaxOutputBytes || e.Timeout() < 0 {
			t.Errorf("%+v", e)
		}
		again, _, err := Resolve(Request(e))
		if err != nil || again != e {
			t.Errorf("%+v, then %+v %v", e, again, err)
		}
	})
}
