package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Runner runs the jobs that a worker has claimed. Any goroutine may call it.
type Runner interface {
	// MemoryMB returns the memory of this host that a run of the tenant needs, in MiB.
	MemoryMB(tenant string, req unitask.Request) int
	// Run returns when the run or ctx has ended, and leaves no machine. Its errors are those of Runtime.Run.
	Run(ctx context.Context, job Job) (Done, error)
}

// Job is a run that a worker has claimed.
type Job struct {
	ID             string // the submitter's
	Tenant, Caller string
	Request        unitask.Request // secrets have their values; Files and Dirs are below Folder
	Colors         string
	Folder         string // the run's files, unpacked; "" if none
	// Image is the submitter's container image or custom image, nil for none. Disk opens its disk or archive, which is not
	// verified.
	Image          *catalog.Shipped
	Disk           func(context.Context) (io.ReadCloser, error)
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Events         func(unitask.Event)
}

// Done is the outcome of a job.
type Done struct {
	Result  *unitask.Result
	Machine json.RawMessage // of the record
	Left    Left            // nil is nothing
}

// OnHost returns the Runner of a Runtime. The ceiling of every run is policy.ForFleet with this host's own file, nil
// for none, narrowed by the file's table for the tenant.
func OnHost(rt *unitask.Runtime, file *policy.Ceiling) Runner {
	return onHost{rt, policy.ForFleet(file)}
}

type onHost struct {
	rt      *unitask.Runtime
	ceiling *policy.Ceiling
}

func (h onHost) MemoryMB(tenant string, req unitask.Request) int {
	return h.rt.HostMemoryMB(req, h.ceiling.For(tenant))
}

// judgingRunner is a Runner that can refuse a run before anything is fetched, as OnHost's does.
type judgingRunner interface {
	judge(tenant string, t task) error
}

func (h onHost) judge(tenant string, t task) error {
	job := Job{Tenant: tenant, Request: t.Request, Image: t.Image}
	ceiling, req := h.ceiling.For(tenant), t.Request
	if job.Image != nil {
		req.Image, ceiling, _ = imageOf(job, ceiling)
	}
	return shippedError(job, h.rt.Refused(req, ceiling))
}

func (h onHost) Run(ctx context.Context, job Job) (done Done, err error) {
	owner := job.Tenant
	if job.Caller != "" {
		owner += ":" + job.Caller
	}
	req := job.Request
	for _, mounts := range []*[]unitask.Mount{&req.Files, &req.Dirs} {
		list := []unitask.Mount{}
		for _, m := range *mounts { // only the run's own files, whatever paths the task has
			list = append(list, unitask.Mount{Host: filepath.Join(job.Folder, filepath.Clean("/"+m.Guest)), Guest: m.Guest})
		}
		*mounts = list
	}
	if job.Folder == "" {
		req.Files, req.Dirs = nil, nil
	}
	ceiling := h.ceiling.For(job.Tenant).Bringing(job.Folder)
	if job.Image != nil {
		if req.Image, ceiling, err = h.image(ctx, job, ceiling); err != nil {
			return done, err
		}
	}
	caller := unitask.Caller{Name: owner, Via: record.ViaFleet, Ceiling: ceiling}
	done.Result, err = h.rt.RunFor(ctx, caller, req, unitask.IO{Stdin: job.Stdin, Stdout: job.Stdout, Stderr: job.Stderr,
		Colors: job.Colors, Events: job.Events})
	if done.Result == nil {
		return done, shippedError(job, err)
	}
	id, runs := done.Result.RunID, h.rt.Runs()
	if rec, e := runs.Get(id); e == nil && rec.Machine != nil {
		done.Machine, _ = json.Marshal(rec.Machine)
	}
	done.Left = func(add func(string, fs.FileMode, int64, io.Reader) error) error {
		for _, part := range [][2]string{{nameStdout, record.StdoutFile}, {nameStderr, record.StderrFile},
			{nameNetlog, record.NetlogFile}, {nameConsole, record.ConsoleFile}} {
			if err := addFile(add, part[0], 0o600, func() (*os.File,
				error) {
				return os.Open(runs.Path(id, part[1]))
			}); err != nil {
				return err
			}
		}
		for _, a := range done.Result.Artifacts {
			if err := addFile(add, outPrefix+a.Path, permOf(a.Mode),
				func() (*os.File, error) { return runs.OpenArtifact(id, a.Path) }); err != nil {
				return err
			}
		}
		return nil
	}
	return done, err
}

func addFile(add func(string, fs.FileMode, int64, io.Reader) error, name string, perm fs.FileMode,
	open func() (*os.File, error)) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	return add(name, perm, st.Size(), f)
}

// permOf reads an artifact's permissions.
func permOf(octal string) (perm fs.FileMode) {
	for _, c := range octal {
		if c < '0' || c > '7' {
			return 0o644
		}
		perm = perm<<3 | fs.FileMode(c-'0')
	}
	return perm.Perm()
}

// maxLine bounds a line of a netlog, in bytes.
const maxLine = 64 << 10

// eachLine passes lines to do until it returns false, and then reads and drops the rest.
func eachLine(r io.Reader, do func([]byte) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() && do(lines.Bytes()) {
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return err
	}
	_, err := io.Copy(io.Discard, r)
	return err
}
