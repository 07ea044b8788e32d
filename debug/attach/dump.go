package attach

import (
	"context"
	"errors"
	"os"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/vmm"
)

// maxDump bounds the part of a dump beyond the guest's memory: headers and notes.
const maxDump = 64 << 20

// Dump writes a machine's memory to a file as an ELF core, which gdb and crash read. The machine is stopped
// meanwhile. QEMU writes into a pipe, because it can't open files.
func Dump(ctx context.Context, monitor *vmm.Monitor, memoryMB int, to *os.File) (int64, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	defer w.Close()
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	if err := monitor.SendFile(ctx, "dump", w); err != nil {
		return 0, err
	}
	w.Close()
	type copied struct {
		n   int64
		err error
	}
	done := make(chan copied, 1)
	limit := int64(memoryMB)<<20 + maxDump
	go func() {
		n, err := to.ReadFrom(&bounded.Reader{From: r, Left: limit, Err: errors.New("more than the machine's memory")})
		done <- copied{n, err}
	}()
	args := map[string]any{"paging": false, "protocol": "fd:dump"}
	if err := monitor.Do(ctx, "dump-guest-memory", args, nil); err != nil {
		r.Close()
		<-done
		return 0, err
	}
	c := <-done
	return c.n, c.err
}
