package policy

import (
	"path/filepath"
	"slices"
)

// ReadsHostFiles reports whether models may list and read the host's files themselves. The ceiling, or one that it
// narrows, must say so, and none may forbid it.
func (c *Ceiling) ReadsHostFiles() bool { return c.Bounds("hostFiles") && c.permits("hostFiles") }

// WritesHostFiles reports whether models may propose changes to any of the host's files.
func (c *Ceiling) WritesHostFiles() bool {
	writes := c.Bounds("writeUnder")
	for ; c != nil; c = c.over {
		folders, has := c.most["writeUnder"].([]string)
		writes = writes && (!has || len(folders) > 0)
	}
	return writes
}

// ReadsHostFile reports whether models may read a file of the host; real has no links.
func (c *Ceiling) ReadsHostFile(real string) bool {
	return c.ReadsHostFiles() && c.allowsUnder("filesUnder", real)
}

// ListsHostFolder reports whether models may list a folder of the host; real has no links.
func (c *Ceiling) ListsHostFolder(real string) bool {
	return c.ReadsHostFiles() && c.allowsUnder("dirsUnder", real)
}

// WriteFolder returns the innermost folder of writeUnder that contains a file of the host. real has no links, and the
// file may be missing. If the ceiling lists the file itself, named is true, and dir is the file's folder. ok is false
// if models may not propose changes to the file. The lists of ceiling files that only narrow another ceiling give no
// folder.
func (c *Ceiling) WriteFolder(real string) (dir string, named, ok bool) {
	if !c.allowsUnder("writeUnder", real) {
		return "", false, false
	}
	folders, _ := c.base().most["writeUnder"].([]string)
	for _, folder := range folders {
		if folder == real && folder != "/" {
			return filepath.Dir(real), true, true
		}
		if Within(folder, real) && len(folder) > len(dir) {
			dir = folder
		}
	}
	return dir, false, dir != ""
}

// allowsUnder reports whether a path is below a folder of a key, in this ceiling and each that it narrows. At least one
// must have the key.
func (c *Ceiling) allowsUnder(key, path string) bool {
	allows := c.Bounds(key)
	for ; c != nil; c = c.over {
		if folders, has := c.most[key].([]string); has {
			allows = allows && slices.ContainsFunc(folders, func(folder string) bool { return Within(folder, path) })
		}
	}
	return allows
}
