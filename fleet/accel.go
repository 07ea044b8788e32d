package fleet

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// acceleratedRunner is a Runner that reports the accelerator of its machines, as OnHost's does.
type acceleratedRunner interface {
	accelerator(ctx context.Context) (accel, whySlow string, err error)
}

func (h onHost) accelerator(ctx context.Context) (string, string, error) {
	accel, whySlow, err := h.rt.Accelerator(ctx)
	return string(accel), whySlow, err
}

// lookAtAccelerator is the time between checks of the accelerator: hardware that failed may work by now.
const lookAtAccelerator = time.Minute

// accelerate keeps the accelerator in the worker's info up to date until ctx ends. The first check may boot a machine,
// and the worker does not wait for that.
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
