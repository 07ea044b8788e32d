package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/realpath"
)

// mounts are files or folders of the host. A ceiling lists the folders that may contain them, with links
// resolved.
type mounts struct{ none }

func (mounts) form() Form { return Mounts }

func (mounts) resolve(f *Field, r *Request, e *Effective) error {
	asked := *at[[]Mount](r, f.Key)
	if len(asked) > MaxRules {
		return f.wrong(fmt.Sprintf("of %d entries", len(asked)),
			fmt.Sprintf("must have at most %d: --dir brings whole folders", MaxRules))
	}
	*at[[]Mount](e, f.Key) = append([]Mount{}, asked...)
	return nil
}

// read resolves the links of a list's folders. A folder that does not exist admits nothing, even if it appears later.
func (mounts) read(f *Field, value any, base string) (any, error) {
	dirs, err := stringList(value)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, dir := range dirs {
		if dir == "" || strings.ContainsRune(dir, 0) {
			return nil, fmt.Errorf("%q: is not a folder's path", dir)
		}
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(base, dir)
		}
		real, err := realpath.Of(dir)
		switch {
		case err == nil:
			out = append(out, real)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%q: %w", dir, err)
		}
	}
	return out, nil
}

// narrow keeps the mounts whose real path is in one of the folders.
func (mounts) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	folders, ok := c.most[f.ceiling()].([]string)
	if !ok {
		return
	}
	granted := at[[]Mount](e, f.Key)
	out := []Mount{}
	for _, m := range *granted {
		if slices.ContainsFunc(folders, func(dir string) bool { return Within(dir, m.Real) }) {
			out = append(out, m)
			continue
		}
		// Everything outside gets the same answer: the caller must not learn where a path leads there, or whether
		// it exists.
		deny(m.Host, "is not under a folder of "+f.ceiling())
	}
	*granted = out
}

func (mounts) beyond(mine, base any) (beyond []string) {
	for _, dir := range mine.([]string) {
		if !slices.ContainsFunc(base.([]string), func(top string) bool { return Within(top, dir) }) {
			beyond = append(beyond, dir)
		}
	}
	return beyond
}

// Within reports whether an absolute path is the folder or is below it, by whole components. Both must be free of links
// and of ".."; otherwise it returns false.
func Within(folder, path string) bool {
	if !filepath.IsAbs(folder) || !filepath.IsAbs(path) || filepath.Clean(folder) != folder ||
		filepath.Clean(path) != path {
		return false
	}
	return path == folder || folder == "/" || strings.HasPrefix(path, folder+"/")
}
