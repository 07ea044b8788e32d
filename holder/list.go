package holder

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/machine"
)

// The list of what a holder has, in a file, for the one that comes after it.

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

// readList is what a holder that was killed has held, as lost. Those whose time is
// over are among them.
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
	list = slices.DeleteFunc(list, func(v View) bool { return v.ID == "" || strings.ContainsAny(v.ID, "/.\x00") })
	if len(list) > maxLost {
		list = list[len(list)-maxLost:]
	}
	for i := range list {
		list[i].State = Lost
	}
	return list
}

// takeOver is the list for the next holder, which removes what is left of the machines in it.
func takeOver(dir string) []View {
	list := readList(dir)
	for _, v := range list {
		_ = os.RemoveAll(filepath.Join(dir, v.ID))
		machine.RemoveLeftovers(filepath.Join(dir, v.ID))
	}
	return current(list)
}

// current leaves out those whose time is over.
func current(list []View) []View {
	return slices.DeleteFunc(list, func(v View) bool { return time.Now().After(v.ExpiresAt) })
}
