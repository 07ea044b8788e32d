package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/vmm"
)

// A template that can't be cloned here (an accelerator whose state can't be restored, a QEMU
// that ends when it is fed one) would cost every run a clone's deadline, and every second one
// another template. So what failed twice is given up for a while. The failures of a key are in a
// file of their own beside the templates, a line each: any number of processes may add to it.
const (
	giveUpAfter = 2
	giveUpFor   = 10 * time.Minute
	maxFailures = 64 << 10 // bytes of the file that are read

	failuresSuffix = ".failed"
)

// failure is a line of the file.
type failure struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

// GivenUp says that a key's templates failed, and until when they are not tried again. It is a
// case of fs.ErrNotExist: there is no template to clone from.
type GivenUp struct {
	Until time.Time
	Why   string // the last failure
}

func (e *GivenUp) Error() string {
	return fmt.Sprintf("templates failed %d times and are given up until %s: %s", giveUpAfter,
		e.Until.Format(time.RFC3339), e.Why)
}

func (e *GivenUp) Is(target error) bool { return target == fs.ErrNotExist }

func (s *Templates) failuresFile(key string) string {
	return filepath.Join(s.dir, "."+digestOf(key)+failuresSuffix)
}

// failures returns those of a key that count: up to the last one, if that is not long ago.
func (s *Templates) failures(key string) (list []failure) {
	text, err := os.ReadFile(s.failuresFile(key))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text[:min(len(text), maxFailures)])) {
		var f failure
		if json.Unmarshal([]byte(line), &f) == nil && !f.At.After(time.Now()) {
			list = append(list, f)
		}
	}
	if len(list) == 0 || time.Since(list[len(list)-1].At) >= giveUpFor {
		return nil
	}
	last := list[len(list)-1].At
	return slices.DeleteFunc(list, func(f failure) bool { return last.Sub(f.At) >= giveUpFor })
}

// Failed counts a failure.
func (s *Templates) Failed(key string, why error) {
	flags := os.O_WRONLY | os.O_APPEND | os.O_CREATE
	if len(s.failures(key)) == 0 {
		flags |= os.O_TRUNC
	}
	text, err := json.Marshal(failure{time.Now().UTC(), oneLine(why)})
	if err != nil || os.MkdirAll(s.dir, 0o700) != nil {
		return
	}
	f, err := os.OpenFile(s.failuresFile(key), flags, 0o600)
	if err != nil {
		return
	}
	_, _ = f.Write(append(text, '\n'))
	f.Close()
}

// Worked forgets the failures of a key.
func (s *Templates) Worked(key string) { _ = os.Remove(s.failuresFile(key)) }

// GivenUp says that a key's templates are not to be tried now; nil if they are.
func (s *Templates) GivenUp(key string) error {
	list := s.failures(key)
	if len(list) < giveUpAfter {
		return nil
	}
	last := list[len(list)-1]
	return &GivenUp{Until: last.At.Add(giveUpFor), Why: last.Why}
}

// killed reports whether an error is the end of a QEMU that somebody killed.
func killed(err error) bool {
	var exit *vmm.ExitError
	return errors.As(err, &exit) && exit.Killed()
}

// oneLine returns an error as it is remembered.
func oneLine(err error) string {
	why := strings.ReplaceAll(err.Error(), "\n", "; ")
	return why[:min(len(why), maxWhy)]
}
