package sessiond

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
)

// This file keeps a daemon's list of sessions, for the next daemon.

func writeList(dir string, list []View) {
	name := filepath.Join(dir, listName)
	if len(list) == 0 {
		_ = os.Remove(name)
		return
	}
	if text, err := json.Marshal(list); err == nil {
		_ = atomicfile.Write(name, text, 0o600)
	}
}

// readList returns the paused and lost sessions of a daemon that has ended, also expired ones.
func readList(dir string) (list []View) {
	f, err := os.Open(filepath.Join(dir, listName))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxText))
	if err != nil || json.Unmarshal(text, &list) != nil {
		return nil
	}
	list = slices.DeleteFunc(list, func(v View) bool {
		return v.ID == "" || strings.ContainsAny(v.ID, "/.\x00")
	})
	if len(list) > maxAway {
		list = list[len(list)-maxAway:]
	}
	for i := range list {
		list[i].State = Paused
		if _, err := machine.ReadPause(filepath.Join(dir, list[i].ID)); errors.Is(err, fs.ErrNotExist) {
			list[i].State = Lost // a pause that can't be read now may be complete
		}
	}
	return list
}

// left returns a home's sessions that nobody holds: those of the list, and those that the user's other processes
// have left paused.
func left(home, dir string) []View {
	list := slices.DeleteFunc(readList(dir), View.over)
	paused, _ := paused.List(home)
	for _, p := range paused {
		changed := p.CeilingChanged(home)
		if at := slices.IndexFunc(list, func(v View) bool { return v.ID == p.ID }); at >= 0 {
			list[at].CeilingChanged = changed
		} else if p.Owner == unitask.LocalOwner(os.Geteuid()) {
			list = append(list, View{ID: p.ID, Parent: p.Parent, State: Paused, Language: p.Language, Image: p.Image,
				CeilingChanged: changed,
				Began:          p.Began.UTC().Truncate(time.Second), ExpiresAt: p.Expires.UTC().Truncate(time.Second)})
		}
	}
	return list
}

func (v View) over() bool { return time.Now().After(v.ExpiresAt) }

// sweep removes what the former daemon left of sessions that nobody continues.
func sweep(home, dir string, runs *record.Store) {
	for _, v := range readList(dir) {
		if runs.Held(v.ID) { // another process continues it
			continue
		}
		machine.RemoveLeftovers(filepath.Join(dir, v.ID))
		if v.State == Lost || v.over() {
			_ = forget(home, v)
			_ = os.RemoveAll(filepath.Join(dir, v.ID))
		}
	}
}
