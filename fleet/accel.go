package fleet

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// acceleratedRunner is a Runner that says what its machines run on; OnHost's does.
type acceleratedRunner interface {
	accelerator(ctx context.Context) (accel, whySlow string, err error)
}

func (h onHost) accelerator(ctx context.Context) (string, string, error) {
	accel, whySlow, err := h.rt.Accelerator(ctx)
	return string(accel), whySlow, err
}

// lookAtAccelerator is how often a worker looks what its machines run on: hardware that failed may work by now.
const lookAtAccelerator = time.Minute

// accelerate keeps what the worker says of its accelerator up to date until ctx ends. The first look may boot a
// machine, and the worker does not wait for it.
func (w *Worker) accelerate(ctx context.Context, r acceleratedRunner) {
	tick := time.NewTicker(lookAtAccelerator)
	defer tick.Stop()
	for said := ""; ; {
		accel, whySlow, err := r.accelerator(ctx)
		switch {
		case err == nil:
			w.count(func(i *WorkerInfo) { i.Accel, i.WhySlow = accel, whySlow })
		case ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) && err.Error() != said: // the image comes with the first run
			said = err.Error()
			w.log.Warn("what machines run on here could not be found out", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
