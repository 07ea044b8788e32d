package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/atomicfile"
)

// NamesFrom tells who gave an image its names.
type NamesFrom int

const (
	Imported NamesFrom = iota // the user who imported it, with any name
	Pulled                    // the registry in the name
)

// ImportedAs reports whether an image has a reference only because somebody imported it under that name. Rules about a
// registry do not apply to such a reference.
func (c *Container) ImportedAs(ref string) bool {
	name, digest, _ := strings.Cut(ref, "@")
	if name == "" || strings.HasPrefix(ref, "sha256:") {
		return false
	}
	led := false
	for _, n := range c.Names {
		if n != ref && (digest == "" || repository(n) != repository(ref)) {
			continue
		}
		if led = true; !slices.Contains(c.imported, n) {
			return false
		}
	}
	return led
}

func (cs Containers) names() (map[string]string, error) {
	names := map[string]string{}
	text, err := os.ReadFile(filepath.Join(cs.dir(), namesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return names, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &names)
	}
	if err != nil {
		return nil, fmt.Errorf("read the names of container images: %w", err)
	}
	return names, nil
}

// nameKey returns the key under which a name is stored: the same reference may lead to an image for each
// architecture.
func nameKey(arch Arch, name string) string { return string(arch) + " " + name }

// importedKey returns the key that marks a name as given by an import, and not by the registry in the name.
func importedKey(arch Arch, name string) string { return importedMark + nameKey(arch, name) }

const importedMark = "imported "

// Name points names to an image of the store. from tells who gave them.
func (cs Containers) Name(ctx context.Context, c *Container, from NamesFrom, names ...string) error {
	return cs.changeNames(ctx, func(all map[string]string) {
		for _, name := range names {
			all[nameKey(c.Arch, name)] = c.key()
			delete(all, importedKey(c.Arch, name))
			if from != Pulled {
				all[importedKey(c.Arch, name)] = "yes"
			}
		}
		c.named(all)
	})
}

// Unname removes a name, and also its image if the image has no other name.
func (cs Containers) Unname(ctx context.Context, arch Arch, name string) error {
	var key string
	others := false
	err := cs.changeNames(ctx, func(all map[string]string) {
		key = all[nameKey(arch, name)]
		delete(all, nameKey(arch, name))
		delete(all, importedKey(arch, name))
		for _, other := range all {
			others = others || other == key
		}
	})
	if err != nil || key == "" || others {
		return err
	}
	c, err := cs.read(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return cs.Remove(ctx, c)
}

func (cs Containers) changeNames(ctx context.Context, change func(map[string]string)) error {
	unlock, err := cs.images.lock(ctx, "container-names")
	if err != nil {
		return err
	}
	defer unlock()
	all, err := cs.names()
	if err != nil {
		return err
	}
	change(all)
	maps.DeleteFunc(all, func(key, _ string) bool { // of a removed name
		name, is := strings.CutPrefix(key, importedMark)
		return is && all[name] == ""
	})
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(cs.dir(), namesFile), append(text, '\n'), 0o600)
}

func (c *Container) named(all map[string]string) {
	c.Names, c.imported = nil, nil
	for name, key := range all {
		if ref, ok := strings.CutPrefix(name, string(c.Arch)+" "); ok && key == c.key() {
			c.Names = append(c.Names, ref)
			if all[importedKey(c.Arch, ref)] != "" {
				c.imported = append(c.imported, ref)
			}
		}
	}
	slices.Sort(c.Names)
}
