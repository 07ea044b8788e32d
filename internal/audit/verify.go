package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// TamperError describes how the log differs from what was written.
type TamperError struct {
	Line   int64 // the first changed line, from 1 on; 0 if it is unknown
	Reason string
}

func (e *TamperError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("the audit log's line %d %s", e.Line, e.Reason)
	}
	return "the audit log " + e.Reason
}

// Verify computes the tree of all lines again. It compares the tree with the hashes that were written with the lines,
// and with a head that was stored elsewhere ("" means none). The head must be signed by key, or by the log's own key if
// key is "". Verify returns the number of lines.
func (l Log) Verify(head, key string) (n int64, err error) {
	if _, err := os.Stat(l.dir); errors.Is(err, fs.ErrNotExist) && head == "" {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	f, done, err := l.open() // nobody appends meanwhile
	if err != nil {
		return 0, err
	}
	defer done()
	err = lines(f.lines, func(i int64, line []byte) error {
		stored, err := tlog.StoredHashes(i, line, f) // from hashes that are already verified
		var kept []tlog.Hash
		if err == nil {
			kept, err = f.ReadHashes(span(tlog.StoredHashIndex(0, i), len(stored)))
		}
		switch {
		case errors.Is(err, io.EOF):
			return &TamperError{i + 1, "was not written by unitask, or its hash is gone"}
		case err != nil:
			return err
		case !slices.Equal(kept, stored):
			return &TamperError{i + 1, "is not what was written, or one before it was taken away"}
		}
		n = i + 1
		return nil
	})
	if err != nil {
		return n, err
	}
	if st, err := f.hashes.Stat(); err != nil {
		return n, err
	} else if st.Size() > hashesEnd(n) {
		return n, &TamperError{n + 1, "and those behind it are gone"}
	}
	if err := f.check(); err != nil || f.n != n {
		return n, &TamperError{0, fmt.Sprintf("has %d lines, and its index %d: the index was changed", n, f.n)}
	}
	if head == "" {
		return n, nil
	}
	return n, l.holds(f, n, head, key)
}

// span returns n numbers from one on.
func span(from int64, n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = from + int64(i)
	}
	return list
}

// holds returns an error unless the tree of n lines begins with a head's tree.
func (l Log) holds(made tlog.HashReader, n int64, head, key string) (err error) {
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
