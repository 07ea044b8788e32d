package program

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// OutDir is the folder whose files come back.
const OutDir = contract.OutDir

// asked is a file or folder of a request, found but not opened.
type asked struct {
	policy.Mount
	found *hostfiles.Found
	field string
	text  string // as the request has it
	must  string // the path that it must lead to; "" means any
}

func (a asked) bad(reason string) error {
	return policy.Bad(a.field, fmt.Sprintf("%.200q", a.text), "%s", reason)
}

// findMounts finds the files and folders of a request, and opens none.
func findMounts(req catalog.Request) (list []asked, err error) {
	for _, part := range []struct {
		field  string
		mounts []run.Mount
	}{{"files", req.Files}, {"dirs", req.Dirs}} {
		for _, m := range part.mounts {
			a := asked{Mount: policy.Mount{Host: m.Host, Guest: m.Guest, Project: m.Project}, field: part.field, text: m.Host,
				must: m.Real}
			if a.found, err = hostfiles.Find(m.Host, part.field == "dirs"); err != nil {
				return list, a.bad(err.Error())
			}
			a.found.Project = m.Project
			list = append(list, a)
			if a.Guest == "" {
				a.Guest = a.found.Host
			}
			if err := CheckGuestPath(part.field, a.Guest); err != nil {
				return list, err
			}
			a.Guest = path.Clean(a.Guest)
			switch {
			case !utf8.ValidString(a.Guest):
				return list, a.bad("is not UTF-8 text: name a path inside, as PATH:/GUESTPATH")
			case policy.Within(OutDir, a.Guest):
				return list, a.bad(OutDir + " is for what comes back")
			case slices.ContainsFunc(list[:len(list)-1], func(o asked) bool { return o.Guest == a.Guest }):
				return list, a.bad("is not the only one at " + a.Guest)
			}
			a.Host, a.Real = a.found.Host, a.found.Real
			list[len(list)-1] = a
		}
	}
	return list, nil
}

// fileOverheadMB is the least memory that files must leave for the rest of a machine.
const fileOverheadMB = 88

// Bytes that a kernel needs for each file beside its pages. Measured with 20 000 files.
const (
	nanosPerFile = 4400
	linuxPerFile = 1200
)

// RoomFor returns an error if a machine has no room for a run's files. They are in its memory,
// and may take half of it. A run that names no kernel may get either.
func RoomFor(brought *hostfiles.Set, kernel image.Kernel, memoryMB int) *policy.FieldError {
	perFile := int64(nanosPerFile)
	if kernel == image.Linux {
		perFile = linuxPerFile
	}
	mb := int(brought.Memory(perFile)>>20) + 1
	if brought.Count() == 0 || mb*2+fileOverheadMB <= memoryMB {
		return nil
	}
	return &policy.FieldError{Field: "memoryMb", Value: strconv.Itoa(memoryMB),
		Would:  map[string]int64{"memoryMb": int64(mb*2 + fileOverheadMB)},
		Reason: fmt.Sprintf("has no room for %d files, which take %d MiB of a machine", brought.Count(), mb)}
}

// roundUp rounds a number of bytes up to what a user would write: whole mebibytes, from one
// mebibyte on.
func roundUp(n int64) int64 {
	if n < 1<<20 {
		return n
	}
	return (n + 1<<20 - 1) >> 20 << 20
}

// Resolve cuts a request to the ceiling, and adds the granted files and folders to
// brought.
func Resolve(req catalog.Request, ceiling *policy.Ceiling, brought *hostfiles.Set) (want policy.Request,
	eff policy.Effective, denials []policy.Denial, err error) {
	want = Asked(req)
	if req.DirMax < 0 {
		return want, eff, nil, policy.Bad("dirMax", strconv.FormatInt(req.DirMax, 10),
			"must be 0, which is the default, or more")
	}
	want.Files, want.Dirs = req.Files, req.Dirs // counted before the first is looked for: each takes a descriptor
	if eff, _, err = policy.Resolve(want, nil); err != nil {
		return want, eff, nil, err
	}
	want.Files, want.Dirs = nil, nil // as they are found
	list, err := findMounts(req)
	defer func() {
		for _, a := range list {
			a.found.Close()
		}
	}()
	if err != nil {
		return want, eff, nil, err
	}
	for _, a := range list {
		if a.field == "files" {
			want.Files = append(want.Files, a.Mount)
		} else {
			want.Dirs = append(want.Dirs, a.Mount)
		}
	}
	if eff, denials, err = policy.Resolve(want, ceiling); err != nil {
		return want, eff, nil, err
	}
	var tooMuch *policy.FieldError // it names the memory that would do
	for _, a := range list {
		granted := eff.Files
		if a.field == "dirs" {
			granted = eff.Dirs
		}
		if !slices.Contains(granted, a.Mount) {
			continue
		}
		if a.must != "" && a.must != a.Real {
			return want, eff, denials, a.bad(fmt.Sprintf("leads to %q, no longer to %q", a.Real, a.must))
		}
		var more *hostfiles.TooMuchError
		err := brought.Add(a.found, a.Guest, cmp.Or(req.DirMax, run.DefaultDirMax))
		switch {
		case errors.As(err, &more):
			if tooMuch == nil {
				tooMuch = &policy.FieldError{Field: a.field, Value: fmt.Sprintf("%.200q", a.text), Reason: err.Error(),
					Would: map[string]int64{}}
			}
			tooMuch.Would["dirMax"] = max(tooMuch.Would["dirMax"], roundUp(more.Bytes))
		case err != nil:
			return want, eff, denials, a.bad(err.Error())
		}
	}
	// Effective discloses where a path leads, only to callers that may have it.
	for _, mounts := range [][]policy.Mount{want.Files, want.Dirs} {
		for i := range mounts {
			mounts[i].Real = ""
		}
	}
	noRoom := RoomFor(brought, image.Kernel(eff.Kernel), eff.MemoryMB)
	switch {
	case tooMuch != nil && noRoom != nil:
		tooMuch.Would["memoryMb"] = noRoom.Would["memoryMb"]
		fallthrough
	case tooMuch != nil:
		return want, eff, denials, tooMuch
	case noRoom != nil:
		return want, eff, denials, noRoom
	}
	return want, eff, denials, nil
}

// kernelFor returns the kernel for a run with these files, which may name a kernel: Nanos
// accepts only names in UTF-8.
func kernelFor(k image.Kernel, brought *hostfiles.Set) (image.Kernel, error) {
	odd := brought.NotText()
	switch {
	case odd == "" || k == image.Linux:
		return k, nil
	case k != "":
		return k, policy.Bad("dirs", fmt.Sprintf("%.200q", odd),
			"has a name that is not UTF-8 text, which the %s kernel can't hold: use linux, or leave it out with %s", k,
			hostfiles.IgnoreFile)
	}
	return image.Linux, nil
}

// Asked returns the part of a request that the policy decides.
func Asked(req catalog.Request) policy.Request {
	asked := policy.Asked(req.Request)
	if _, im, _, err := req.FindLanguage(); err == nil {
		asked.Image = im.Payload.Name
	}
	asked.Files, asked.Dirs = nil, nil // as they are found
	asked.Secrets = req.SecretNames()
	return asked
}
