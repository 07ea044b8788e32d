package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

const (
	maxSkills     = 32 << 20 // bytes of all skills of a session
	maxSkillFiles = 2000
)

// file is a file for the machine. Its name is relative to the working folder.
type file struct {
	name string
	data []byte
	run  bool // it is executable
}

// skillsIn reads the skills that the SDK has put below a folder of the host. Links are left out.
func skillsIn(dir string) (list []file, err error) {
	size := 0
	err = filepath.WalkDir(filepath.Join(dir, "skills"), func(name string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) || err == nil && !e.Type().IsRegular() {
			return nil
		}
		if err != nil {
			return err
		}
		about, err := e.Info()
		if err != nil {
			return err
		}
		if size += int(about.Size()); size > maxSkills || len(list) == maxSkillFiles {
			return fmt.Errorf("the session's skills have over %d bytes or %d files", maxSkills, maxSkillFiles)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(dir, name)
		list = append(list, file{filepath.ToSlash(below), data, about.Mode()&0o100 != 0})
		return err
	})
	return list, err
}

// bring puts files into the working folder.
func (m *machine) bring(ctx context.Context, files []file) error {
	made, scripts := map[string]bool{}, []string{"chmod", "+x", "--"}
	for _, f := range files {
		name := path.Join(m.dir, f.name)
		if dir := path.Dir(name); !made[dir] {
			made[dir] = true
			err := m.call(ctx, "fs/createDirectory", map[string]any{"path": fileURI(dir), "recursive": true}, nil)
			if err != nil {
				return err
			}
		}
		if err := m.put(ctx, name, f.data); err != nil {
			return err
		}
		if f.run {
			scripts = append(scripts, name)
		}
	}
	if len(scripts) == 3 {
		return nil
	}
	said, code, err := m.output(ctx, maxOutput, scripts...)
	if err == nil && code != 0 {
		err = fmt.Errorf("chmod: %s", said)
	}
	return err
}
