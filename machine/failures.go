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

// A template may be impossible to clone here: its state can't be restored on this accelerator, or QEMU exits when
// it loads the state. Every run would then wait for a clone's deadline, and every second run would make another
// template. So a template that failed twice is given up for a while. The failures of a key are in a file beside
// the templates, one a line: any number of processes may append.
const (
	giveUpAfter = 2
	giveUpFor   = 10 * time.Minute
	maxFailures = 64 << 10 // bytes of the file that are read

	failuresSuffix = ".failed"
)

// failure is one line of the file.
type failure struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

// GivenUp reports that a key's templates failed, and until when they are not tried again. It counts as
// fs.ErrNotExist: there is no template to clone from.
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

// failures returns the failures of a key, or nil if the last one is at least giveUpFor ago.
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
	if err != nil || makeInHome(s.dir) != nil {
		return
	}
	f, err := os.OpenFile(s.failuresFile(key), flags, 0o600)
	if err != nil {
		return
	}
	_, _ = f.Write(append(text, '\n'))
	f.Close()
}

// Worked deletes the failures of a key.
func (s *Templates) Worked(key string) { _ = os.Remove(s.failuresFile(key)) }

// GivenUp returns an error if a key's templates are not to be tried now.
func (s *Templates) GivenUp(key string) error {
	list := s.failures(key)
	if len(list) < giveUpAfter {
		return nil
	}
	last := list[len(list)-1]
	return &GivenUp{Until: last.At.Add(giveUpFor), Why: last.Why}
}

// killed reports whether an error means that somebody killed QEMU.
func killed(err error) bool {
	var exit *vmm.ExitError
	return errors.As(err, &exit) && exit.Killed()
}

// oneLine returns an error's text on one line, cut to maxWhy.
func oneLine(err error) string {
	why := strings.ReplaceAll(err.Error(), "\n", "; ")
	return why[:min(len(why), maxWhy)]
}
