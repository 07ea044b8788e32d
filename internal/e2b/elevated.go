package e2b

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/session"
)

// E2B's daemon works as root, and gives what it makes to the request's user. So a client may create /workspace. Here
// the user's own rights are tried first.

// giveScript makes a folder, if there is a second path, and gives what it made, or the file, to a user.
const giveScript = `set -eu
owner=$1 path=$2 top=
if [ -n "$3" ]; then
	at=$path
	while [ ! -e "$at" ]; do top=$at; at=$(dirname -- "$at"); done
	mkdir -p -- "$path"
	[ -z "$top" ] || chown -hR -- "$owner:$owner" "$top"
else
	chown -h -- "$owner:$owner" "$path"
fi
`

// giveTime bounds giveScript.
const giveTime = 10 * time.Second

// give runs giveScript.
func (box *sandbox) give(ctx context.Context, user, name, folder string) error {
	args := []string{"/bin/sh", "-c", giveScript, "give", user, name, folder}
	res, err := box.session.Exec(ctx, unitask.Command{Args: args, Dir: "/", User: "root", Timeout: giveTime,
		ResultBytes: 200})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("give %s to %s: %s", name, user, res.Stderr)
	}
	return err
}

// makeFolder makes a folder for a user, where only root may if need be.
func (box *sandbox) makeFolder(ctx context.Context, of *session.Files, user, name string) (session.FileInfo, error) {
	info, err := of.MakeDir(ctx, name)
	if !errors.Is(err, fs.ErrPermission) || user == "root" {
		return info, err
	}
	if box.give(ctx, user, name, "folder") != nil {
		return info, err
	}
	return of.Stat(ctx, name)
}

// maxReplayed bounds the bytes that are sent before the machine refuses to write, and so may be sent again.
const maxReplayed = 1 << 20

// replayed keeps the first bytes that were read, for a second reader.
type replayed struct {
	mu   sync.Mutex // held while it reads
	from io.Reader
	kept []byte
	lost bool // there were more
	over bool // a second reader has the rest
}

func (r *replayed) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return 0, io.EOF
	}
	n, err := r.from.Read(p)
	if r.lost = r.lost || len(r.kept)+n > maxReplayed; r.lost {
		r.kept = nil
	} else {
		r.kept = append(r.kept, p[:n]...)
	}
	return n, err
}

// again returns a reader of the same bytes from the first on. It waits for a Read in progress: the first reader gets no
// more. ok is false if too many were read.
func (r *replayed) again() (all io.Reader, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return io.MultiReader(bytes.NewReader(r.kept), r.from), !r.lost
}

// writeFile writes a file for a user, where only root may if need be.
func (box *sandbox) writeFile(ctx context.Context, of *session.Files, user, name string, from io.Reader,
	metadata map[string]string) (session.FileInfo, error) {
	content := &replayed{from: from}
	info, err := of.Write(ctx, name, content, 0o644, metadata)
	if !errors.Is(err, fs.ErrPermission) || user == "root" {
		return info, err
	}
	refused := err
	all, ok := content.again()
	if !ok {
		return info, refused
	}
	root, err := box.session.FilesAs("root")
	if err == nil {
		err = box.give(ctx, user, path.Dir(name), "folder")
	}
	if err != nil {
		return info, refused
	}
	if info, err = root.Write(ctx, name, all, 0o644, metadata); err != nil {
		return info, err
	}
	return info, box.give(ctx, user, name, "")
}
