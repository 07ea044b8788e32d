package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/unitask/unitask/internal/filelock"
)

const openFlags = syscall.O_NOFOLLOW

// TamperError says what of the log is not as it was written.
type TamperError struct {
	Line   int64 // the first one, from 1 on; 0 where none can be named
	Reason string
}

func (e *TamperError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("the audit log's line %d %s", e.Line, e.Reason)
	}
	return "the audit log " + e.Reason
}

// tree is a tree in memory.
type tree []tlog.Hash

func (t tree) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, n := range at {
		if n < 0 || n >= int64(len(t)) {
			return nil, errors.New("a hash that is not there")
		}
		out[i] = t[n]
	}
	return out, nil
}

// Verify makes the tree of all lines again and holds it against the hashes that were written
// with them, and against a head that was kept elsewhere ("" is none), which must be signed by
// key, or by the log's own key if that is "". It returns how many lines there are.
func (l Log) Verify(head, key string) (n int64, err error) {
	hashes, err := os.Open(l.name(hashesFile))
	if errors.Is(err, os.ErrNotExist) && head == "" {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer hashes.Close()
	lock, err := filelock.Take(l.name(lockFile)) // nobody appends meanwhile
	if err != nil {
		return 0, err
	}
	defer lock.Unlock()
	var made tree
	err = l.Read(func(i int64, line []byte) error {
		stored, err := tlog.StoredHashes(i, line, made)
		if err != nil {
			return err
		}
		for _, h := range stored {
			var kept tlog.Hash
			switch _, err := io.ReadFull(hashes, kept[:]); {
			case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
				return &TamperError{i + 1, "was not written by unitask, or its hash is gone"}
			case err != nil:
				return err
			case kept != h:
				return &TamperError{i + 1, "is not what was written, or one before it was taken away"}
			}
		}
		made = append(made, stored...)
		n = i + 1
		return nil
	})
	if err != nil {
		return n, err
	}
	if _, err := io.ReadFull(hashes, make([]byte, 1)); err == nil {
		return n, &TamperError{n + 1, "and those behind it are gone"}
	}
	if head == "" {
		return n, nil
	}
	return n, l.holds(made, n, head, key)
}

// holds says whether the tree of n lines begins with that of a head.
func (l Log) holds(made tree, n int64, head, key string) (err error) {
	if key == "" {
		if key, err = l.Verifier(); err != nil {
			return err
		}
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return fmt.Errorf("the verifier's key: %w", err)
	}
	signed, err := note.Open([]byte(head), note.VerifierList(verifier))
	if err != nil {
		return fmt.Errorf("the head was not signed by the key of this log: %w", err)
	}
	parts := strings.Split(signed.Text, "\n")
	if len(parts) != 4 || parts[0] != keyName {
		return errors.New("the head is none of an audit log")
	}
	size, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || size < 0 {
		return errors.New("the head has no number of lines")
	}
	want, err := tlog.ParseHash(parts[2])
	if err != nil {
		return fmt.Errorf("the head's hash: %w", err)
	}
	if size > n {
		return &TamperError{n + 1, fmt.Sprintf("and those behind it are gone: the head has %d lines", size)}
	}
	got, err := tlog.TreeHash(size, made)
	if err != nil {
		return err
	}
	if got != want {
		return &TamperError{0, fmt.Sprintf("was written anew: its first %d lines are not those of the head", size)}
	}
	return nil
}
