package hostfiles

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strings"
	"time"
)

// A machine may contain folders before a run requests them. Unchanged files are then not sent again; this file
// detects changes without reading the files. A wrong answer would make a run use old files, so in any doubt the
// files are sent.

// Steady describes folders whose later changes can be detected.
type Steady struct {
	// Digest covers everything that identifies the files: paths inside, modes, sizes, links, inodes, and the
	// times of their last change, which a program can't set.
	Digest  string   `json:"digest"`
	Folders []Folder `json:"folders"`
	// Changed is the time of the last change to any of the files.
	Changed time.Time `json:"changed"`

	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

// Folder is the state of a folder of a run's request.
type Folder struct {
	Host    string `json:"host"`
	Real    string `json:"real"`
	Guest   string `json:"guest"`
	Project bool   `json:"project,omitempty"`
}

// SettleTime is how long a file must be unchanged. A program that has mapped a file may continue to change it
// while a page is dirty, without a change of the file's times. Linux writes pages back after half a minute
// (vm.dirty_expire_centisecs, Documentation/admin-guide/sysctl/vm.rst), and then records the next change. It is
// also far above the resolution of these times.
const SettleTime = time.Minute

// Folders below both limits are sent in less than a second, and are not worth a template's room.
const (
	minSteadyCount = 500
	minSteadyBytes = 8 << 20
)

// stamp identifies a version of a file during one boot of the kernel. The zero value identifies nothing.
type stamp struct {
	dev, ino uint64
	changed  int64 // ns
}

// Steady finds the part of the folders that is worth storing in a machine and whose changes can be detected; nil
// means none. In a folder with node_modules this is only node_modules: people work on the rest.
func (s *Set) Steady() *Steady {
	for i, m := range s.mounts {
		if slices.ContainsFunc(s.mounts[:i], func(o *mount) bool {
			return within(o.guest, m.guest) ||
				within(m.guest, o.guest)
		}) {
			return nil // a later entry may replace an earlier one
		}
	}
	st, digest := &Steady{}, sha256.New()
	known := map[uint64]bool{} // devices whose times can be trusted
	var changed int64
	for _, m := range s.mounts {
		if m.root == nil {
			continue
		}
		modules := slices.ContainsFunc(s.entries, func(e entry) bool { return m.has(&e) && isModule(e.Path) })
		for i := range s.entries {
			e := &s.entries[i]
			if !m.has(e) || modules && !isModule(e.Path) {
				continue
			}
			if e.from != nil {
				good, asked := known[e.stamp.dev]
				if !asked {
					good = e.stamp != stamp{} && keepsTimes(e)
					known[e.stamp.dev] = good
				}
				if !good {
					s.forget()
					return nil
				}
				changed = max(changed, e.stamp.changed)
			}
			e.steady = true
			digest.Write(e.mark())
			st.Count++
			st.Bytes += e.Size
		}
		st.Folders = append(st.Folders, Folder{Host: m.host, Real: m.real, Guest: m.guest, Project: m.project})
	}
	if st.Count < minSteadyCount && st.Bytes < minSteadyBytes {
		s.forget()
		return nil
	}
	st.Digest, st.Changed = hex.EncodeToString(digest.Sum(nil)), time.Unix(0, changed)
	return st
}

func (s *Set) forget() {
	for i := range s.entries {
		s.entries[i].steady = false
	}
}

func (m *mount) has(e *entry) bool {
	rest, below := strings.CutPrefix(e.Path, m.guest)
	return below && (rest == "" || rest[0] == '/' || m.guest == "/")
}

func isModule(p string) bool { return strings.Contains(p+"/", "/"+modulesDir+"/") }

// mark contains everything that the guest gets of an entry, with a stamp instead of the content.
func (e *entry) mark() []byte {
	b := make([]byte, 0, 256)
	for _, text := range []string{e.Path, e.Target} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(e.Mode))
	for _, n := range []uint64{uint64(e.Size), uint64(e.ModTime.UnixNano()), e.stamp.dev, e.stamp.ino,
		uint64(e.stamp.changed)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// ErrUnsteady means that folders have changed.
var ErrUnsteady = errors.New("the folders have been changed")

// Settle waits until the folders' files have been unchanged for SettleTime.
func (s *Steady) Settle(ctx context.Context) error {
	left := time.Until(s.Changed.Add(SettleTime))
	if left > SettleTime { // the clock was set
		return ErrUnsteady
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Put finds the folders again and sends them; it fails if they are not the same before and after it.
func (s *Steady) Put(ctx context.Context, to Guest) error {
	set, err := s.open()
	if err != nil {
		return err
	}
	defer set.Close()
	if err := set.Put(ctx, to, OnlySteady, func(Sent) {}); err != nil {
		return err
	}
	after, err := s.open()
	if err != nil {
		return err
	}
	after.Close()
	return nil
}

// open lists the folders again, if they are the same.
func (s *Steady) open() (*Set, error) {
	set := &Set{}
	for _, f := range s.Folders {
		found, err := Find(f.Host, true)
		if err != nil {
			set.Close()
			return nil, err
		}
		found.Project = f.Project
		if found.Real == f.Real {
			err = set.Add(found, f.Guest, math.MaxInt64)
		} else {
			err = ErrUnsteady
		}
		found.Close()
		if err != nil {
			set.Close()
			return nil, err
		}
	}
	if now := set.Steady(); now == nil || now.Digest != s.Digest {
		set.Close()
		return nil, ErrUnsteady
	}
	return set, nil
}

// Patience bounds the time to send them.
func (s *Steady) Patience() time.Duration { return Patience(s.Bytes, s.Count) }

// Stamp identifies the version of the files in the folder mounted at a path, without reading them; "" if the host
// does not support that.
func (s *Set) Stamp(guest string) string {
	digest, known := sha256.New(), map[uint64]bool{}
	for _, m := range s.mounts {
		if m.guest != guest || m.root == nil {
			continue
		}
		for i := range s.entries {
			e := &s.entries[i]
			if !m.has(e) || e.from == nil {
				continue
			}
			good, asked := known[e.stamp.dev]
			if !asked {
				good = e.stamp != stamp{} && keepsTimes(e)
				known[e.stamp.dev] = good
			}
			if !good {
				return ""
			}
			digest.Write(e.mark())
		}
	}
	return hex.EncodeToString(digest.Sum(nil))
}
