package selfupdate

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/filelock"
)

const (
	inArchive = "unitask/unitask" // the program's name in an archive
	startTime = 20 * time.Second  // of a new program that says its version
	closeTime = time.Second       // until its output ends, once it has ended

	fresh = ".unitask-update-" // begins the name of a new program
)

// Previous returns the name of the file that keeps the program before the last update.
func Previous(program string) string { return program + ".previous" }

// replaced returns the name that a program has while a new one takes its place.
func replaced(program string) string { return program + ".replaced" }

// Install puts the release's program in the place of a program, which becomes Previous. progress gets the bytes of the
// archive that have come. If Install fails, the program is unchanged and nothing is left behind.
func (r *Release) Install(ctx context.Context, program string, progress func(int64)) error {
	lock, err := alone(program)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	st, err := ours(program)
	if err != nil {
		return err
	}
	if _, err := ours(Previous(program)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	is, err := says(ctx, program)
	if err != nil {
		return err
	}
	if newer, err := r.Newer(is); err != nil || !newer { // another update may have come since the caller asked
		return cmp.Or(err, fmt.Errorf("%s is %s already", program, is))
	}
	archive, err := r.fetch(ctx, progress)
	if err != nil {
		return err
	}
	defer archive.Close()
	next, err := extract(archive, filepath.Dir(program), st.Mode().Perm())
	if err != nil {
		return fmt.Errorf("%s: %w", r.archive, err)
	}
	defer os.Remove(next) // it has another name by then, unless something failed
	said, err := says(ctx, next)
	if err == nil && said != r.Version {
		err = fmt.Errorf("it says that it is %.40q", said)
	}
	if err != nil {
		return fmt.Errorf("the program of %s does not work here: %w", r.Version, err)
	}
	return swap(program, next)
}

// Rollback exchanges the program and Previous. It returns the version of the program that is in place then.
func Rollback(ctx context.Context, program string) (version string, err error) {
	lock, err := alone(program)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	if _, err := ours(program); err != nil {
		return "", err
	}
	if _, err := ours(Previous(program)); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no %s: unitask self update has not replaced this program", Previous(program))
	} else if err != nil {
		return "", err
	}
	if version, err = says(ctx, Previous(program)); err != nil {
		return "", fmt.Errorf("the program before the update does not work here: %w", err)
	}
	return version, swap(program, Previous(program))
}

// alone excludes other updates of a program, and ends what a killed one has left.
func alone(program string) (*filelock.Lock, error) {
	lock, err := filelock.TryAlone(filepath.Dir(program))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("another update of %s is under way: wait for its end", program)
	}
	if err != nil {
		return nil, err
	}
	entries, _ := os.ReadDir(filepath.Dir(program))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), fresh) && e.Type().IsRegular() {
			_ = os.Remove(filepath.Join(filepath.Dir(program), e.Name())) // another user's may stay
		}
	}
	old, oldErr := ours(replaced(program))
	now, err := os.Lstat(program)
	switch {
	case errors.Is(oldErr, fs.ErrNotExist):
		return lock, nil
	case oldErr == nil && err == nil && os.SameFile(old, now): // killed before the exchange
		err = os.Remove(replaced(program))
	case oldErr == nil && err == nil: // killed after it
		err = os.Rename(replaced(program), Previous(program))
	}
	if err = cmp.Or(oldErr, err); err != nil {
		lock.Unlock()
		return nil, err
	}
	return lock, nil
}

// ours describes a program. It is an error if another user could have written it.
func ours(program string) (fs.FileInfo, error) {
	st, err := os.Lstat(program)
	if err != nil {
		return nil, err
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", program)
	case uid != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to the user with uid %d: update it as that user", program, uid)
	case st.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("%s may be written by anybody: chmod o-w %s", program, program)
	}
	return st, nil
}

// fetch returns the release's archive in a nameless file, after it has compared the digest.
func (r *Release) fetch(ctx context.Context, progress func(int64)) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, archiveTime)
	defer cancel()
	from, err := open(ctx, r.from, r.archive)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	file, err := os.CreateTemp("", "unitask-update-")
	if err != nil {
		return nil, err
	}
	os.Remove(file.Name())
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, sum, counter(progress)), io.LimitReader(from, maxArchive+1))
	switch {
	case err != nil:
	case n > maxArchive:
		err = fmt.Errorf("it has more than %d MiB", maxArchive>>20)
	case hex.EncodeToString(sum.Sum(nil)) != r.digest:
		err = fmt.Errorf("its %d bytes have another digest than %s names. It may be incomplete, or a newer release "+
			"has just come: try again", n, SumsFile)
	default:
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", r.archive, err)
	}
	return file, nil
}

// counter reports how many bytes were written to it.
type counter func(int64)

func (c counter) Write(b []byte) (int, error) {
	c(int64(len(b)))
	return len(b), nil
}

// extract writes an archive's program to a new file in a folder, and returns its name.
func extract(archive io.Reader, dir string, mode fs.FileMode) (name string, err error) {
	unpacked, err := gzip.NewReader(archive)
	if err != nil {
		return "", err
	}
	files := tar.NewReader(unpacked)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("it has no %s", inArchive)
		}
		if err != nil {
			return "", err
		}
		if h.Name == inArchive && h.Typeflag == tar.TypeReg {
			if h.Size > maxProgram {
				return "", fmt.Errorf("its program has more than %d MiB", maxProgram>>20)
			}
			return write(files, dir, mode)
		}
	}
}

func write(program io.Reader, dir string, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(dir, fresh)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, program)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// says returns the version that a program says it is.
func says(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = closeTime
	text, err := cmd.Output()
	fields := strings.Fields(string(text))
	if err != nil || len(fields) == 0 {
		return "", errors.Join(err, fmt.Errorf("%s --version says %.80q", program, text))
	}
	return fields[len(fields)-1], nil
}

// swap gives the program's name to next, and Previous to what the program was. At each moment there is a program, and
// alone ends an exchange that was interrupted.
func swap(program, next string) error {
	if err := os.Link(program, replaced(program)); err != nil {
		return err
	}
	if err := os.Rename(next, program); err != nil {
		return errors.Join(err, os.Remove(replaced(program)))
	}
	return os.Rename(replaced(program), Previous(program))
}
